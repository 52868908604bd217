//! The Debian package: built with the program, and what is in it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use weir_deploy_checks::{project, run, tool, weir};

fn build(folder: &Path) -> String {
    let mut build = Command::new(project().join("deploy/deb/build.sh"));
    // Compression takes most of the time.
    build.env("DEB_COMPRESSION", "none");
    run(build.arg(weir().unwrap()).arg("amd64").arg(folder)).unwrap();
    let file = folder.join(format!("weir_{}_amd64.deb", env!("CARGO_PKG_VERSION")));
    file.to_str().unwrap().to_owned()
}

fn dpkg_deb(arguments: &[&str]) -> String {
    run(Command::new(tool("WEIR_TEST_DPKG_DEB").unwrap()).args(arguments)).unwrap()
}

#[test]
fn the_package_has_the_program_its_units_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    assert_eq!(
        dpkg_deb(&["--field", &package, "Package", "Architecture"]).trim(),
        "Package: weir\nArchitecture: amd64"
    );

    let contents = dpkg_deb(&["--contents", &package]);
    let rights = |path: &str| {
        let line = contents.lines().find(|line| line.ends_with(&format!(" .{path}")));
        let (rights, rest) = line.unwrap_or_else(|| panic!("no {path}: {contents}")).split_once(' ').unwrap();
        assert!(rest.starts_with("root/root"), "{path}: {rest}");
        rights.to_owned()
    };
    assert_eq!(rights("/usr/bin/weir"), "-rwxr-xr-x");
    for completion in
        ["bash-completion/completions/weir", "zsh/vendor-completions/_weir", "fish/vendor_completions.d/weir.fish"]
    {
        assert_eq!(rights(&format!("/usr/share/{completion}")), "-rw-r--r--");
    }

    let unpacked = folder.path().join("unpacked");
    dpkg_deb(&["--raw-extract", &package, unpacked.to_str().unwrap()]);
    for unit in fs::read_dir(project().join("deploy/systemd")).unwrap().map(|unit| unit.unwrap().path()) {
        let name = unit.file_name().unwrap();
        if !unit.extension().is_some_and(|kind| kind == "service" || kind == "timer") {
            continue;
        }
        let installed = fs::read_to_string(unpacked.join("usr/lib/systemd/system").join(name)).unwrap();
        assert_eq!(installed, fs::read_to_string(&unit).unwrap().replace("/usr/local/bin/weir", "/usr/bin/weir"));
    }
    run(Command::new(unpacked.join("usr/bin/weir")).arg("--version")).unwrap();
}

#[test]
fn an_installation_makes_an_environment_that_only_root_reads_with_a_key_and_an_upgrade_keeps_it() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("usr/share/weir")).unwrap();
    fs::copy(project().join("deploy/systemd/weir.env.example"), at("usr/share/weir/weir.env.example")).unwrap();
    let install = || {
        let mut script = Command::new("sh");
        // With another root it asks systemd for nothing.
        script.arg(project().join("deploy/deb/postinst")).args(["configure", ""]).env("DPKG_ROOT", root.path());
        run(&mut script).unwrap();
        fs::read_to_string(at("etc/weir/weir.env")).unwrap()
    };
    let first = install();
    let key = first.lines().find_map(|line| line.strip_prefix("WEIR_API_KEYS=")).unwrap();
    assert!(key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    assert_eq!(fs::metadata(at("etc/weir/weir.env")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(install(), first);
}

#[test]
fn a_purge_keeps_the_keys_that_the_database_needs_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("etc/weir");
    let purged = |settings: &str| {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("weir.env"), settings).unwrap();
        let mut script = Command::new("sh");
        run(script.arg(project().join("deploy/deb/postrm")).arg("purge").env("DPKG_ROOT", root.path())).unwrap();
        folder.exists()
    };
    assert!(!purged("WEIR_LOG=info\n#WEIR_ENCRYPTION_KEYS=<key>\n"));
    assert!(purged("WEIR_ENCRYPTION_KEYS=c2VjcmV0\n"));
    assert!(folder.join("weir.env").exists());
}

#[test]
fn scripts_of_the_package_do_nothing_without_systemd_and_are_valid() {
    for script in ["postinst", "prerm", "postrm", "build.sh"] {
        let file = project().join("deploy/deb").join(script);
        run(Command::new("bash").arg("-n").arg(&file)).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(script == "build.sh" || text.contains("-d /run/systemd/system"), "{script}");
    }
}

#[test]
fn the_same_program_makes_the_same_package() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = folders.each_ref().map(|folder| fs::read(build(folder.path())).unwrap());
    assert!(first == second);
}
