use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Fixture, VIEWER};

async fn document() -> Value {
    Fixture::start("").await.get(VIEWER, "/openapi.json").await.json()
}

#[tokio::test]
async fn every_operation_has_an_id_of_its_own_descriptions_and_problems() {
    let document = document().await;
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} is not only {method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{method} {path}: {status}");
            }
            let error = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert!(error.is_object(), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn every_reference_leads_to_a_schema() {
    let document = document().await;
    let schemes = &document["components"]["securitySchemes"];
    let requirements = document["security"].as_array().unwrap();
    assert_eq!(requirements.len(), 2);
    for requirement in requirements {
        let name = requirement.as_object().unwrap().keys().next().unwrap();
        assert_eq!(schemes[name]["type"], json!("http"), "{name}: {schemes}");
    }
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn the_guide_lists_the_operations_of_the_document() {
    let document = document().await;
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(|method| operation(&method.to_uppercase(), path))
    });
    assert_eq!(operations_of_the_guide(), operations.collect());
}

/// Names an operation, with `{}` for each path parameter.
fn operation(method: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap();
    let parts = path.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    format!("{method} {}", parts.collect::<Vec<_>>().join("{}"))
}

/// Parses the guide's table. A cell may hold several operations; later ones repeat the first one's
/// method and path prefix: "`POST /a:b`, `:c`" or "`GET /a`, `…/b`".
fn operations_of_the_guide() -> BTreeSet<String> {
    let mut operations = BTreeSet::new();
    let guide = include_str!("../../docs/guide/http-api.md");
    let cells = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    for cell in cells.filter(|cell| cell.contains(" /")) {
        let (mut methods, mut first) = (Vec::new(), "");
        for code in cell.split('`').skip(1).step_by(2) {
            let path = match code.split_once(' ') {
                Some((method, path)) => {
                    methods.push(method);
                    path
                }
                None if code.starts_with(char::is_uppercase) => {
                    methods.push(code);
                    continue;
                }
                None => code,
            };
            let path = if let Some(rest) = path.strip_prefix('…') {
                format!("{first}{rest}")
            } else if path.starts_with(':') {
                format!("{}{path}", first.rsplit_once(':').unwrap().0)
            } else {
                first = path;
                path.to_owned()
            };
            operations.extend(methods.iter().map(|method| operation(method, &path)));
        }
    }
    operations
}
