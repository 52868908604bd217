//! The image: its sources, and whether the runtime stage can be built and run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;
use weir_deploy_checks::{project, read, run, tool, weir};

const DOCKERFILE: &str = "deploy/docker/Dockerfile";
/// The size limit in bytes, without the base, which adds about 35 MB.
const MAX_SIZE: u64 = 40_000_000;

/// Buildah with a store of its own, which is removed with the folder.
struct Buildah {
    program: PathBuf,
    folder: TempDir,
}

impl Buildah {
    fn new() -> Self {
        Self { program: tool("WEIR_TEST_BUILDAH").unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    /// Neither overlay mounts nor a container runtime are needed.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.folder.path().join("root"));
        command.arg("--runroot").arg(self.folder.path().join("run")).args(arguments);
        command.env("BUILDAH_ISOLATION", "chroot");
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments)).unwrap()
    }
}

/// Replaces the build stage: the program of the release build.
fn build_stage() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("out/data")).unwrap();
    fs::copy(weir().unwrap(), folder.path().join("out/weir")).unwrap();
    folder
}

/// Replaces the base image: the libraries of the program, from this machine.
fn base(buildah: &Buildah) {
    let libraries = run(Command::new("ldd").arg(weir().unwrap())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = folder.path().join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(library, &target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(folder.path().join("Dockerfile"), "FROM scratch\nCOPY . /\n").unwrap();
    buildah.run(&["build", "--tag", "base", folder.path().to_str().unwrap()]);
}

fn build(buildah: &Buildah, base: &str, tag: &str) {
    let stage = build_stage();
    let (project, stage) = (project(), stage.path().to_str().unwrap().to_owned());
    let (base, stage) = (format!("RUNTIME_IMAGE={base}"), format!("build={stage}"));
    let file = project.join(DOCKERFILE);
    let mut build = buildah.command(&["build", "--target", "runtime", "--timestamp", "0", "--pull-never"]);
    build.args(["--build-arg", &base, "--build-context", &stage, "--tag", tag, "--file"]).arg(file).arg(&project);
    run(&mut build).unwrap();
}

#[test]
fn hadolint_accepts_the_dockerfile() {
    run(Command::new(tool("WEIR_TEST_HADOLINT").unwrap()).arg(project().join(DOCKERFILE))).unwrap();
}

#[test]
fn base_images_are_arguments_with_a_tag_and_a_valid_digest() {
    let dockerfile = read(DOCKERFILE).unwrap();
    let bases: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next()).collect();
    assert_eq!(bases, ["${RUST_IMAGE}", "${RUNTIME_IMAGE}"]);
    for line in dockerfile.lines().filter_map(|line| line.strip_prefix("ARG ")) {
        let (_, image) = line.split_once('=').unwrap();
        let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
        let (_, tag) = name.rsplit_once(':').unwrap();
        assert!(!tag.ends_with("latest"), "{image}");
        let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(digest.is_none_or(|digest| digest.strip_prefix("sha256:").is_some_and(is_digest)), "{image}");
    }
}

#[test]
fn the_runtime_stage_is_one_binary_with_an_unprivileged_user() {
    let buildah = Buildah::new();
    build(&buildah, "scratch", "weir");
    let about = buildah.run(&["inspect", "--type", "image", "weir"]);
    let about: serde_json::Value = serde_json::from_str(&about).unwrap();
    let config = &about["OCIv1"]["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/usr/local/bin/weir"]));
    assert!(config["Env"].as_array().is_none_or(|env| env.iter().all(|one| !one.to_string().contains("WEIR_"))));

    let archive = buildah.folder.path().join("image");
    buildah.run(&["push", "--quiet", "weir", &format!("dir:{}", archive.display())]);
    let size: u64 = fs::read_dir(&archive).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    println!("the image without its base: {:.1} MB compressed", size as f64 / 1e6);
    assert!(size < MAX_SIZE, "{size}");
}

#[test]
fn the_image_runs_the_program_as_its_user() {
    let buildah = Buildah::new();
    base(&buildah);
    build(&buildah, "localhost/base", "weir");
    let container = buildah.run(&["from", "--pull-never", "localhost/weir"]);
    let output = buildah.run(&["run", container.trim(), "--", "/usr/local/bin/weir", "--version"]);
    assert!(output.starts_with("weir "), "{output}");
}

#[test]
fn every_source_of_the_program_is_in_the_build_context() {
    let (buildah, folder) = (Buildah::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("Dockerfile");
    fs::write(&file, "FROM scratch\nCOPY . /\n").unwrap();
    let (context, project) = (folder.path().join("context"), project());
    let mut copy = buildah.command(&["build", "--file"]);
    copy.arg(file).arg("--output").arg(format!("type=local,dest={}", context.display())).arg(&project);
    run(&mut copy).unwrap();

    for source in sources() {
        assert!(context.join(&source).is_file(), "{} is not in the context", source.display());
    }
    // Cargo fails if a member of the workspace is missing.
    let mut metadata = Command::new(env!("CARGO"));
    run(metadata.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]).current_dir(&context))
        .unwrap();
    for folder in ["target", ".git", "clients", "docs"] {
        assert!(!context.join(folder).exists(), "{folder}");
    }
}

/// The files of the project that the compiler has read. Cargo writes this list next to the program.
fn sources() -> Vec<PathBuf> {
    let list = fs::read_to_string(weir().unwrap().with_extension("d")).unwrap();
    let (_, files) = list.split_once(": ").unwrap();
    let project = project();
    let files = files.split_whitespace().filter_map(|file| Path::new(file).strip_prefix(&project).ok());
    let files: Vec<_> = files.map(Path::to_owned).collect();
    assert!(files.iter().any(|file| file.ends_with("main.rs")), "{list}");
    files
}
