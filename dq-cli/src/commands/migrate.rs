use dq_core::config::Migrated;
use serde_json::json;

use crate::args::{MigrateArgs, TargetArgs};
use crate::failure::Result;
use crate::output::Output;
use crate::source;

pub(crate) fn run(target: &TargetArgs, args: &MigrateArgs, output: &mut Output<'_>) -> Result<()> {
    let store = source::store_settings(target)?;
    let role = args.grant.as_deref();
    if args.print {
        let sql = store.schema_sql(role)?;
        return output.either(&json!({ "sql": sql }), || sql.clone());
    }
    let result = source::runtime()?.block_on(store.migrate(role))?;
    output.either(&json!({ "action": "migrate", "result": result }), || {
        let done = match result {
            Migrated::Created => "created the schema",
            Migrated::Updated => "brought the schema up to date",
            _ => "the schema is up to date",
        };
        let granted = role.map(|role| format!("; {} may use it", crate::text::clean(role)));
        format!("{done}{}\n", granted.unwrap_or_default())
    })
}
