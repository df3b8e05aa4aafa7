//! The API as of 0.1: a client written for it keeps working.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Fixture, VIEWER};

/// The document of 0.1, without texts, examples and bounds. Keep it: a later version gets its own.
const OF_0_1: &str = include_str!("fixtures/openapi-0.1.json");

/// Whether the client sends a value or gets it.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Request,
    Response,
}

/// Two documents, and what a client of the old one would miss in the new one.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    compared: BTreeSet<String>,
    breaks: Vec<String>,
}

fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, compared: BTreeSet::new(), breaks: Vec::new() };
    for (path, item) in entries(&old["paths"]) {
        for (method, operation) in entries(item) {
            let place = format!("{method} {path}");
            comparison.operation(&place, operation, &new["paths"][path][method]);
        }
    }
    comparison.breaks
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

impl Comparison<'_> {
    fn operation(&mut self, place: &str, old: &Value, new: &Value) {
        if new.is_null() {
            return self.breaks.push(format!("{place} is missing"));
        }
        let same =
            |one: &Value, other: &Value| one["name"] == other["name"] && one["in"] == other["in"];
        for parameter in items(&old["parameters"]) {
            match items(&new["parameters"]).find(|it| same(it, parameter)) {
                Some(it) => self.schema(place, &parameter["schema"], &it["schema"], Side::Request),
                None => self.breaks.push(format!("{place}: no parameter {}", parameter["name"])),
            }
        }
        for parameter in items(&new["parameters"]).filter(|it| it["required"] == json!(true)) {
            if !items(&old["parameters"])
                .any(|it| same(it, parameter) && it["required"] == json!(true))
            {
                self.breaks
                    .push(format!("{place}: the parameter {} is required", parameter["name"]));
            }
        }
        let requires = |operation: &Value| operation["requestBody"]["required"] == json!(true);
        if requires(new) && !requires(old) {
            self.breaks.push(format!("{place} requires a body"));
        }
        self.content(place, &old["requestBody"], &new["requestBody"], Side::Request);
        for (status, response) in entries(&old["responses"]) {
            let place = format!("{place}, {status}");
            match &new["responses"][status] {
                Value::Null => self.breaks.push(format!("{place} is missing")),
                new => self.content(&place, response, new, Side::Response),
            }
        }
    }

    fn content(&mut self, place: &str, old: &Value, new: &Value, side: Side) {
        for (media_type, old) in entries(&old["content"]) {
            match &new["content"][media_type] {
                Value::Null => self.breaks.push(format!("{place}: no {media_type}")),
                new => self.schema(place, &old["schema"], &new["schema"], side),
            }
        }
    }

    fn schema(&mut self, place: &str, old: &Value, new: &Value, side: Side) {
        let place = match old["$ref"].as_str() {
            // A schema may contain itself.
            Some(name) if !self.compared.insert(format!("{name} {new} {}", side as u8)) => return,
            Some(name) => name.rsplit('/').next().unwrap(),
            None => place,
        };
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        for keyword in ["type", "format", "const"] {
            if !old[keyword].is_null() && old[keyword] != new[keyword] {
                self.breaks.push(format!("{place}: {} is {}", old[keyword], new[keyword]));
            }
        }
        for value in items(&old["enum"]).filter(|value| !items(&new["enum"]).any(|it| it == *value))
        {
            self.breaks.push(format!("{place}: no {value}"));
        }
        let is_narrower =
            |it: &str| old[it].is_null() && !new[it].is_null() && new[it] != json!(true);
        for keyword in ["enum", "const", "additionalProperties"] {
            if side == Side::Request && is_narrower(keyword) {
                self.breaks.push(format!("{place} allows only {}", new[keyword]));
            }
        }
        let (of_old, of_new) = (&old["required"], &new["required"]);
        let (all, allowed) =
            if side == Side::Request { (of_new, of_old) } else { (of_old, of_new) };
        for name in items(all).filter(|name| !items(allowed).any(|it| it == *name)) {
            self.breaks.push(match side {
                Side::Request => format!("{place} requires {name}"),
                Side::Response => format!("{place} may be without {name}"),
            });
        }
        for (name, property) in entries(&old["properties"]) {
            let place = format!("{place}.{name}");
            match &new["properties"][name] {
                Value::Null => self.breaks.push(format!("{place} is missing")),
                new => self.schema(&place, property, new, side),
            }
        }
        for keyword in ["items", "additionalProperties"] {
            if old[keyword].is_object() {
                self.schema(&format!("{place}, {keyword}"), &old[keyword], &new[keyword], side);
            }
        }
        for keyword in ["oneOf", "anyOf", "allOf"] {
            for (number, old) in items(&old[keyword]).enumerate() {
                self.schema(
                    &format!("{place}, {keyword} {number}"),
                    old,
                    &new[keyword][number],
                    side,
                );
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_0_1_misses_nothing() {
    let old = serde_json::from_str(OF_0_1).unwrap();
    let new = Fixture::start("").await.get(VIEWER, "/openapi.json").await.json();
    assert_eq!(breaks(&old, &new), [""; 0]);
    if env!("CARGO_PKG_VERSION") == "0.1.0" {
        assert_eq!(breaks(&new, &old), [""; 0], "the file lacks something of 0.1");
    }
}

#[test]
fn each_kind_of_break_is_found() {
    let old: Value = serde_json::from_str(OF_0_1).unwrap();
    for (place, changed) in [
        ("/paths/~1v1~1claims/post", Value::Null),
        ("/paths/~1v1~1claims/post/responses/200", Value::Null),
        ("/paths/~1v1~1queues~1{queue}~1jobs/get/parameters/1/required", json!(true)),
        ("/paths/~1v1~1queues~1{queue}~1jobs/get/parameters/2/name", json!("prefix")),
        ("/components/schemas/ClaimRequest/required", json!(["queues", "max"])),
        ("/components/schemas/ClaimRequest/properties", json!({})),
        ("/components/schemas/JobSummary/required", json!([])),
        ("/components/schemas/JobState/enum/0", json!("other")),
        ("/components/schemas/JobId/type", json!("integer")),
        ("/components/schemas/JobKey/enum", json!(["order-1"])),
        (
            "/paths/~1v1~1runners/get/responses/default/content/application~1problem+json/schema/$ref",
            json!("#/components/schemas/JobId"),
        ),
        ("/paths/~1v1~1queues~1{queue}:pause/post/requestBody", json!({ "required": true })),
    ] {
        let mut new = old.clone();
        let (parent, name) = place.rsplit_once('/').unwrap();
        match new.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = changed,
            object => object[name.replace("~1", "/")] = changed,
        }
        assert_ne!(breaks(&old, &new), [""; 0], "{place}");
    }
}
