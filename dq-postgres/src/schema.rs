//! Creates and migrates the schema, and checks its version.
//!
//! Library versions run side by side: a deployment replaces processes one by one and may be rolled
//! back. So `meta` holds the schema's version, the oldest version that may still write (`min_writer`)
//! and the oldest that may still read (`min_reader`). A migration that older versions can ignore leaves
//! the minimums alone. If a function's meaning changes, it gets a new name. A process newer than the schema
//! replaces the other functions when it connects.

use dq_core::{Error, ErrorKind, Result};
use tokio_postgres::types::Type;

use crate::connect::{Pool, Statement};
use crate::error::Effect;
use crate::store::in_schema;

/// A migration that older versions cannot live with also raises `min_writer` or `min_reader`. A
/// released migration never changes.
const MIGRATIONS: [&str; 1] = [include_str!("sql/tables.sql")];

const FUNCTIONS: [&str; 8] = [
    include_str!("sql/common.sql"),
    include_str!("sql/schedule.sql"),
    include_str!("sql/change.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/operate.sql"),
    include_str!("sql/maintain.sql"),
    include_str!("sql/api.sql"),
];

pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// For statements with arrays: plans that do not depend on statistics, and use the indexes.
const PLANNED: &str = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off \
    SET enable_hashjoin = off SET enable_mergejoin = off";

/// PostgreSQL 14.
const MIN_SERVER: i32 = 140_000;

/// Two processes create the schema one after the other.
const LOCK: i64 = 0x6471_6a62;

/// Returns the SQL that brings the schema from version `from` to the current one.
pub(crate) fn migration(schema: &str, from: i64) -> String {
    let mut sql = String::new();
    if from == 0 {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n"));
    }
    for (_, migration) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= from) {
        sql.push_str(&in_schema(schema, migration));
    }
    for functions in FUNCTIONS {
        let functions = functions.replace("{planned}", PLANNED).replace("{channel}", schema);
        sql.push('\n');
        sql.push_str(&in_schema(schema, &functions));
    }
    sql.push_str(&in_schema(schema, &format!("\nUPDATE dq.meta SET version = {VERSION};\n")));
    sql
}

/// Creates or migrates the schema if necessary. Restores functions that were dropped, unless a later
/// version may have dropped them.
pub(crate) async fn ensure(pool: &Pool, schema: &str) -> Result<()> {
    let found = version(pool, schema).await?;
    if found > VERSION || (found == VERSION && has_functions(pool, schema).await?) {
        return Ok(());
    }
    // The version is read again under the lock: another process may migrate at the same time.
    let mut steps = String::new();
    for from in 0..=VERSION {
        let sql = migration(schema, from);
        steps.push_str(&format!("IF known = {from} THEN EXECUTE $sql${sql}$sql$; END IF;\n"));
    }
    let sql = format!(
        r#"BEGIN;
        SELECT pg_advisory_xact_lock({LOCK});
        DO $migrate$
        DECLARE known integer := 0;
        BEGIN
            IF to_regclass('"{schema}".meta') IS NOT NULL THEN
                SELECT version INTO known FROM "{schema}".meta;
            END IF;
            {steps}
        END $migrate$;
        COMMIT"#
    );
    pool.execute_all(&sql).await
}

async fn has_functions(pool: &Pool, schema: &str) -> Result<bool> {
    let definitions = FUNCTIONS.iter().flat_map(|sql| sql.lines());
    let named = definitions.filter_map(|line| line.strip_prefix("CREATE OR REPLACE FUNCTION dq."));
    let names: Vec<&str> = named.filter_map(|rest| rest.split('(').next()).collect();
    let statement = Statement {
        sql: "SELECT count(*) FROM pg_proc
            WHERE pronamespace = to_regnamespace(quote_ident($1))::oid AND proname = ANY ($2)",
        effect: Effect::Reads,
    };
    let params = [(&schema as _, Type::TEXT), (&names as _, Type::TEXT_ARRAY)];
    let rows = pool.query(statement, &params).await?;
    Ok(usize::try_from(rows[0].get::<_, i64>(0)).is_ok_and(|found| found >= names.len()))
}

pub(crate) async fn exists(pool: &Pool, schema: &str) -> Result<bool> {
    Ok(version(pool, schema).await? > 0)
}

/// Returns 0 without a schema.
///
/// # Errors
/// `Incompatible` for an old server, for a schema that is not ours, and for a version that this library
/// may no longer read and write.
async fn version(pool: &Pool, schema: &str) -> Result<i64> {
    let found = pool
        .query(
            Statement {
                sql: "SELECT current_setting('server_version_num')::integer,
                    current_setting('server_version'),
                    to_regclass(quote_ident($1) || '.meta') IS NOT NULL,
                    EXISTS (SELECT FROM pg_class
                        WHERE relnamespace = to_regnamespace(quote_ident($1))::oid)",
                effect: Effect::Reads,
            },
            &[(&schema, Type::TEXT)],
        )
        .await?;
    let row = &found[0];
    if row.get::<_, i32>(0) < MIN_SERVER {
        return Err(incompatible(
            format!("the server is PostgreSQL {}", row.get::<_, &str>(1)),
            "use PostgreSQL 14 or newer",
        ));
    }
    match (row.get(2), row.get(3)) {
        (false, false) => return Ok(0),
        (false, true) => return Err(foreign(schema)),
        (true, _) => {}
    }
    let sql = in_schema(
        schema,
        "SELECT version::bigint, min_writer::bigint, min_reader::bigint FROM dq.meta",
    );
    let statement = Statement { sql: &sql, effect: Effect::Reads };
    let rows = match pool.query(statement, &[]).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == ErrorKind::Incompatible => return Err(foreign(schema)),
        Err(error) => return Err(error),
    };
    let row = rows.first().ok_or_else(|| foreign(schema))?;
    let (version, min_writer, min_reader): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    for (verb, minimum) in [("read", min_reader), ("write", min_writer)] {
        if VERSION < minimum {
            return Err(incompatible(
                format!(
                    "only programs that know version {minimum} of the schema {schema} may {verb} it; \
                     this one knows version {VERSION}"
                ),
                "upgrade dq-postgres in this program",
            ));
        }
    }
    Ok(version)
}

fn foreign(schema: &str) -> Error {
    incompatible(
        format!("the schema {schema} has tables that dq-postgres did not create"),
        "set another `schema`",
    )
}

fn incompatible(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Incompatible, what).remedy(remedy)
}
