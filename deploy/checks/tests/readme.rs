//! Numbers in the guides that come from the program.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use weir_deploy_checks::{manifests, read};

fn constant(source: &str, name: &str) -> usize {
    let (_, rest) = source.split_once(&format!("const {name}: ")).unwrap();
    let digits: String = rest.chars().skip_while(|one| *one != '=').skip(2).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn the_guide_has_the_number_of_connections_that_the_store_opens() {
    let store = read("crates/weir-store-postgres/src/open.rs").unwrap();
    let (pool, several) = (constant(&store, "DEFAULT_POOL"), ["POSTING", "CLAIMING", "SETTLING"]);
    let writers: usize = several.map(|name| constant(&store, name)).iter().sum();
    let singles = store.matches("Writers::spawn(1, ").count();
    assert_eq!(store.matches("Writers::spawn(").count(), several.len() + singles);
    let writers = writers + singles;

    let guide = read("k8s/README.md").unwrap();
    // One more, because retention has its own connection.
    let sentence = format!(
        "holds {} at most: {pool} for reads, {writers} for writes in batches, 1 for retention",
        pool + writers + 1
    );
    let words: Vec<&str> = guide.split_whitespace().collect();
    assert!(words.join(" ").contains(&sentence), "the guide should say: {sentence}");
}

#[test]
fn the_guide_names_every_overlay_and_component() {
    let guide = read("k8s/README.md").unwrap();
    let components = manifests::components().into_iter().map(|name| format!("components/{name}"));
    for folder in manifests::OVERLAYS.iter().map(|name| format!("overlays/{name}")).chain(components) {
        assert!(guide.contains(&format!("({folder})")), "{folder}");
    }
}
