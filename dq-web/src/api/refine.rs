//! Refines the derived OpenAPI document: which fields go together, and names for union
//! alternatives, so that client generators create types for them.

use serde_json::{Map, Value, json};

/// Completes the document. This relies on schema names; the document test checks the result.
pub(super) fn refine(document: &mut Value) {
    visit(document, &mut |schema| {
        // `u32` does not fit a signed 32-bit number.
        if schema.get("format") == Some(&json!("int32")) {
            schema.insert("format".to_owned(), json!("int64"));
            schema.entry("maximum").or_insert(json!(u32::MAX));
        }
    });
    visit(&mut document["components"]["schemas"], &mut |schema| {
        // Generators treat a field with a default as always present. Descriptions name the
        // defaults.
        schema.remove("default");
    });
    visit(document, &mut |object| {
        if let Some(Value::String(text)) = object.get_mut("description") {
            *text = plain(text);
        }
    });
    refine_parameters(document);
    let schemas = document["components"]["schemas"].as_object_mut();
    let schemas = schemas.expect("the document has schemas");
    timeline_event(schemas);
    name_alternatives(schemas);
    new_job(schemas);
    schedule_definition(schemas);
    bulk(schemas);
    let reschedule = &mut document["paths"]["/v1/queues/{queue}/jobs:reschedule"]["post"];
    reschedule["requestBody"]["content"]["application/json"]["schema"] =
        reference("BulkReschedule");
    document["paths"]["/v1/simulate"]["post"]["requestBody"]["required"] = json!(false);
}

fn visit(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|value| visit(value, change));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| visit(value, change)),
        _ => {}
    }
}

/// An absent parameter has no value, so it is never `null`.
fn refine_parameters(document: &mut Value) {
    visit(document, &mut |object| {
        let Some(Value::Array(parameters)) = object.get_mut("parameters") else { return };
        for schema in parameters.iter_mut().filter_map(|parameter| parameter.get_mut("schema")) {
            if let Some(Value::Array(types)) = schema.get_mut("type") {
                types.retain(|name| name != "null");
                schema["type"] = schema["type"][0].take();
            }
            if let Some(Value::Array(alternatives)) = schema.get_mut("oneOf") {
                alternatives.retain(|one| one["type"] != "null");
                *schema = alternatives[0].take();
            }
        }
    });
}

/// Strips Rust-only parts: item links and examples.
fn plain(comment: &str) -> String {
    let text = comment.split("\n\n```").next().unwrap_or_default();
    let mut parts = text.replace("`None`", "`null`").replace("[`", "`");
    while let Some((before, rest)) = parts.split_once("`](") {
        let (_, after) = rest.split_once(')').unwrap_or_default();
        parts = format!("{before}`{after}");
    }
    parts.replace("`]", "`")
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Puts the time into each alternative of an event. The derived union plus object with the time
/// does not work, because generators merge only objects.
fn timeline_event(schemas: &mut Map<String, Value>) {
    let kind = schemas.remove("EventKind").unwrap_or_default();
    let event = &mut schemas["TimelineEvent"];
    let Some(Value::Array(parts)) = event.get_mut("allOf") else { return };
    let at = parts.iter_mut().find_map(|part| part["properties"].get_mut("at")).map(Value::take);
    let at = at.unwrap_or_default();
    let mut alternatives = kind["oneOf"].clone();
    for alternative in alternatives.as_array_mut().into_iter().flatten() {
        alternative["properties"]["at"] = at.clone();
        if let Some(required) = alternative["required"].as_array_mut() {
            required.push(json!("at"));
        }
    }
    *event = json!({ "description": event["description"], "oneOf": alternatives });
}

/// Makes a schema for each alternative of a tagged union, and declares the tag.
fn name_alternatives(schemas: &mut Map<String, Value>) {
    let mut named = Map::new();
    for (union, schema) in schemas.iter_mut() {
        let Some(Value::Array(alternatives)) = schema.get_mut("oneOf") else { continue };
        let tag = alternatives.first().and_then(tag_of).map(|(tag, _)| tag);
        let Some(tag) = tag else { continue };
        let mut mapping = Map::new();
        for alternative in alternatives {
            let Some((_, value)) = tag_of(alternative) else { continue };
            let name = format!("{union}{}", camel_case(&value));
            let by_name = reference(&name);
            mapping.insert(value, by_name["$ref"].clone());
            named.insert(name, std::mem::replace(alternative, by_name));
        }
        schema["discriminator"] = json!({ "propertyName": tag, "mapping": mapping });
    }
    schemas.extend(named);
}

/// Returns the field that has a single value, and that value.
fn tag_of(alternative: &Value) -> Option<(String, String)> {
    let properties = alternative.get("properties")?.as_object()?;
    properties.iter().find_map(|(name, property)| {
        match property.get("enum")?.as_array()?.as_slice() {
            [Value::String(value)] => Some((name.clone(), value.clone())),
            _ => None,
        }
    })
}

fn camel_case(name: &str) -> String {
    let part = |part: &str| part[..1].to_uppercase() + &part[1..];
    name.split('_').map(part).collect()
}

/// Derives a schema: without some fields, and with others required.
fn variant(schema: &Value, description: &str, without: &[&str], required: &[&str]) -> Value {
    let mut schema = schema.clone();
    schema["description"] = json!(description);
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| !without.contains(&name.as_str()));
        for name in required {
            // A required field is never null.
            let property = &mut properties[*name];
            if let Some(Value::Array(alternatives)) = property.get_mut("oneOf") {
                alternatives.retain(|one| one["type"] != "null");
                *property = alternatives[0].take();
            }
        }
    }
    schema["required"] = json!(required);
    schema
}

/// A new job's payload is either JSON or another format, which may have a MIME type.
fn new_job(schemas: &mut Map<String, Value>) {
    let body = schemas["NewJobBody"].take();
    let policies = json!({"properties": {"on_conflict": {"const": "keep"}, "on_running": {"const": "refuse"}}});
    let variants = [
        (
            "Job",
            "A job with JSON as its payload.",
            &["payload_base64", "content_type"][..],
            "payload",
        ),
        ("BinaryJob", "A job with any bytes as its payload.", &["payload"], "payload_base64"),
    ];
    // The name of a single request is a header.
    for (prefix, of_request) in [("New", &["idempotency_key"][..]), ("NewNamed", &[])] {
        for (name, description, without, payload) in variants {
            let without = [without, of_request].concat();
            let mut job = variant(&body, description, &without, &[payload]);
            // Without a key there is no conflict.
            job["if"] = json!({"required": ["key"], "properties": {"key": {"type": "string"}}});
            job["else"] = policies.clone();
            schemas.insert(format!("{prefix}{name}"), job);
        }
    }
    let one_of = |prefix: &str| {
        let variants = variants.map(|(name, ..)| reference(&format!("{prefix}{name}")));
        json!({ "description": "A job to schedule.", "oneOf": variants })
    };
    schemas["NewJobBody"] = one_of("New");
    schemas["NewJobsBody"]["properties"]["jobs"]["items"] = one_of("NewNamed");
}

/// A schedule has either a cron expression or an interval.
fn schedule_definition(schemas: &mut Map<String, Value>) {
    let body = schemas["ScheduleDefinition"].take();
    let variants = [
        ("CronSchedule", "A schedule with the times of a cron expression.", &["every"][..], "cron"),
        ("IntervalSchedule", "A schedule with an interval.", &["cron", "tz"], "every"),
    ];
    for (name, description, without, times) in variants {
        let schema = variant(&body, description, without, &["queue", times]);
        schemas.insert(name.to_owned(), schema);
    }
    schemas["ScheduleDefinition"] = json!({
        "description": "A schedule's definition.",
        "oneOf": variants.map(|(name, ..)| reference(name)),
    });
}

/// A bulk change names its jobs by a filter or `all`, and a due time for `reschedule`.
fn bulk(schemas: &mut Map<String, Value>) {
    let fields = ["key_prefix", "due_from", "due_before", "error"];
    let is_set =
        |field: &str| json!({"required": [field], "properties": {field: {"type": "string"}}});
    let filter =
        json!({"required": ["filter"], "properties": {"filter": {"anyOf": fields.map(is_set)}}});
    let all = json!({"required": ["all"], "properties": {"all": {"const": true}}});
    let dry_run = json!({"required": ["dry_run"], "properties": {"dry_run": {"const": true}}});
    let expected =
        json!({"required": ["expected"], "properties": {"expected": {"not": {"type": "null"}}}});
    let body = schemas["BulkBody"].take();
    let description = "Which jobs to change.";
    let mut change = variant(&body, description, &["due"], &[]);
    change["if"] = filter;
    change["then"] = json!({"properties": {"all": {"const": false}}});
    change["else"] = json!({"anyOf": [all, dry_run, expected]});
    let mut reschedule = change.clone();
    let due = variant(&body, description, &[], &["due"]);
    reschedule["description"] = json!("Which jobs get which due time.");
    reschedule["properties"]["due"] = due["properties"]["due"].clone();
    reschedule["required"] = json!(["due"]);
    schemas["BulkBody"] = change;
    schemas.insert("BulkReschedule".to_owned(), reschedule);
}
