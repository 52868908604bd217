//! The table of the settings in docs/reference/configuration.md.

use super::{
    names::variable,
    settings::{SETTINGS, Setting},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";
const RENEW: &str = "RENEW_REFERENCE";

fn row(setting: &Setting) -> String {
    let default = match (setting.default, setting.shown_default) {
        ("", "") => "none".to_owned(),
        (default, shown) if default == shown => format!("`{default}`"),
        (_, shown) => shown.to_owned(),
    };
    let roles: Vec<_> = setting.used_by.iter().map(|role| role.name()).collect();
    let used_by = if roles.is_empty() { "all".to_owned() } else { roles.join(", ") };
    let help = format!("{}. {}", setting.help, setting.more);
    format!("| `{}` | {default} | {used_by} | {} |\n", variable(setting.name), help.trim_end())
}

#[test]
fn the_page_of_the_configuration_has_the_table_of_the_settings() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let rows: String = SETTINGS.iter().map(row).collect();
    let table = format!("| variable | default | used by | meaning |\n|---|---|---|---|\n{rows}");
    let renewed = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(PAGE, &renewed).unwrap();
    } else {
        assert!(page == renewed, "{PAGE} is stale; renew it: {RENEW}=1 cargo test -p weir --bins reference");
    }
}
