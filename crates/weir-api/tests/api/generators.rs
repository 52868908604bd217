//! Programs of others read the OpenAPI document: a linter, generators of clients, and those that make the types of
//! Weir's own clients. None may report anything.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::harness::Server;

/// What the linter does not check, with the reason.
const LINTS_LEFT_OUT: [(&str, &str); 1] =
    [("no-unused-components", "the page of the documentation lists every problem and what the stream sends")];

/// What the linter reports although no request is ambiguous, with the reason.
const REPORTED: [(&str, &str); 1] = [(
    "warn no-ambiguous-paths #/paths/~1v1~1limit-groups~1{id}~1reservations~1{rid}",
    "the id of a limit group begins with `lgr_`, so it is never `by-name`",
)];

/// The linter, which reads the document and prints its problems.
const LINT: &str = r"
const { lint, createConfig } = require('@redocly/openapi-core');
(async () => {
  const left_out = Object.fromEntries(JSON.parse(process.argv[2]).map((rule) => [rule, 'off']));
  const rules = { ...left_out, 'no-invalid-media-type-examples': { severity: 'error', allowAdditionalProperties: false } };
  const config = await createConfig({ extends: ['recommended'], rules });
  for (const { severity, ruleId, message, location } of await lint({ ref: process.argv[1], config })) {
    console.log(`${severity} ${ruleId} ${location[0]?.pointer}: ${message}`);
  }
})();
";

fn provided(variable: &str) -> PathBuf {
    let value = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is set by `cargo xtask test`"));
    value.into()
}

/// The text that a program prints, which must succeed.
fn text_of(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{text}");
    text
}

async fn document() -> Value {
    Server::start().await.get("/openapi.json").await.expect(http::StatusCode::OK)
}

fn write(folder: &Path, document: &Value) -> PathBuf {
    let file = folder.join("openapi.json");
    fs::write(&file, document.to_string()).unwrap();
    file
}

#[tokio::test]
async fn a_linter_finds_nothing_in_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &document().await);
    // `node_modules/.bin` is a folder of links beside the packages.
    let packages = provided("WEIR_TEST_OPENAPI_TYPESCRIPT").parent().unwrap().parent().unwrap().to_owned();
    let node = std::env::var("WEIR_TEST_NODE").unwrap_or_else(|_| "node".to_owned());
    let left_out = json!(LINTS_LEFT_OUT.map(|(rule, _)| rule)).to_string();
    let mut linter = Command::new(node);
    linter.args(["-e", LINT]).arg(&file).arg(left_out).current_dir(packages.parent().unwrap());
    let text = text_of(&mut linter);
    let reported = |line: &str| REPORTED.iter().any(|(problem, _)| line.starts_with(&format!("{problem}:")));
    let (reported, others): (Vec<_>, Vec<_>) = text.lines().partition(|line| reported(line));
    assert_eq!(others, Vec::<&str>::new());
    assert_eq!(reported.len(), REPORTED.len(), "a problem that is no longer reported is removed from the list");
}

#[tokio::test]
async fn a_generator_of_python_clients_makes_every_operation() {
    let document = document().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, made) = (write(folder.path(), &document), folder.path().join("made"));
    let program = provided("WEIR_TEST_OPENAPI_PYTHON_CLIENT");
    let mut generator = Command::new(&program);
    generator.args(["generate", "--meta", "none", "--fail-on-warning", "--path"]).arg(&file);
    // It formats with `ruff`, which is installed beside it.
    let path = std::env::join_paths([program.parent().unwrap().to_owned(), "/usr/bin".into(), "/bin".into()]).unwrap();
    let text = text_of(generator.arg("--output-path").arg(&made).env("PATH", path));
    assert!(!text.contains("arning"), "{text}");
    let functions = |folder: PathBuf| -> usize {
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        files.filter(|name| name.ends_with(".py") && name != "__init__.py").count()
    };
    let groups = fs::read_dir(made.join("api")).unwrap().map(|group| group.unwrap().path());
    let operations = document["paths"].as_object().unwrap().values().map(|item| item.as_object().unwrap().len());
    assert_eq!(groups.filter(|group| group.is_dir()).map(functions).sum::<usize>(), operations.sum::<usize>());
}

/// With `RENEW_CLIENT_TYPES` the files are written instead: `cargo xtask client-types`.
#[tokio::test]
async fn the_types_of_the_clients_are_made_from_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &for_types(document().await));
    let (typescript, python) = (folder.path().join("schema.ts"), folder.path().join("schema.py"));
    let mut generator = Command::new(provided("WEIR_TEST_OPENAPI_TYPESCRIPT"));
    generator.arg(&file).args(["--default-non-nullable", "false", "--output"]).arg(&typescript);
    text_of(&mut generator);
    let mut generator = Command::new(provided("WEIR_TEST_DATAMODEL_CODEGEN"));
    generator.args(["--input-file-type", "openapi", "--output-model-type", "typing.TypedDict"]);
    generator.args(["--target-python-version", "3.10", "--no-use-closed-typed-dict", "--enum-field-as-literal", "all"]);
    generator.args(["--use-union-operator", "--use-standard-collections", "--use-schema-description"]);
    generator.args(["--use-inline-field-description", "--disable-timestamp"]);
    generator.args(["--formatters", "builtin", "--input"]).arg(&file).arg("--output").arg(&python);
    text_of(&mut generator);
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    for (made, own) in [(typescript, "typescript/src/schema.ts"), (python, "python/src/weir_client/schema.py")] {
        let (made, own) = (fs::read_to_string(made).unwrap(), clients.join(own));
        if std::env::var_os("RENEW_CLIENT_TYPES").is_some() {
            fs::write(&own, made).unwrap();
            continue;
        }
        let is_current = fs::read_to_string(&own).is_ok_and(|current| current == made);
        assert!(is_current, "{} is stale: run `cargo xtask client-types`", own.display());
    }
}

/// The part of the document that the clients use: schemas, and the parameters of the operations.
fn for_types(mut document: Value) -> Value {
    for (_, item) in document["paths"].as_object_mut().unwrap() {
        for (_, operation) in item.as_object_mut().unwrap() {
            let (id, parameters) = (operation["operationId"].take(), operation["parameters"].take());
            *operation = json!({"operationId": id, "responses": {}});
            if parameters.is_array() {
                operation["parameters"] = parameters;
            }
        }
    }
    document["components"].as_object_mut().unwrap().remove("responses");
    document
}
