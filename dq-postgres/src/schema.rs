//! Creates and migrates the schema, and checks its version.
//!
//! Library versions run side by side: a deployment replaces processes one by one and may be rolled
//! back. So `meta` holds the schema's version, the oldest version that may still write
//! (`min_writer`) and the oldest that may still read (`min_reader`). A migration that older
//! versions can ignore leaves the minimums alone. If a function's arguments, result or meaning
//! change, it gets a new name, except `claim`, which `limits.sql` replaces.
//!
//! The functions have their own version. A process replaces an older build's functions, and changed
//! or dropped ones, but never a newer build's.

use std::collections::HashSet;

use dq_core::config::Migrated;
use dq_core::{Error, ErrorKind, Result};
use tokio_postgres::types::Type;

use crate::connect::{Pool, Statement};
use crate::error::Effect;
use crate::store::in_schema;

/// A migration that older versions cannot live with also raises `min_writer` or `min_reader`. A
/// released migration never changes.
const MIGRATIONS: [&str; 2] = [include_str!("sql/tables.sql"), include_str!("sql/limits.sql")];

const FUNCTIONS: [&str; 10] = [
    include_str!("sql/common.sql"),
    include_str!("sql/flow.sql"),
    include_str!("sql/groups.sql"),
    include_str!("sql/schedule.sql"),
    include_str!("sql/change.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/operate.sql"),
    include_str!("sql/maintain.sql"),
    include_str!("sql/api.sql"),
];

pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// A test asks to raise it when the functions change.
const FUNCTIONS_VERSION: i64 = 1;

/// For statements with arrays: plans that do not depend on statistics, and use the indexes. Without
/// JIT, because a scan that cannot be avoided counts as so costly that the server would compile it
/// for seconds.
const PLANNED: &str = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off \
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off";

/// PostgreSQL 14.
const MIN_SERVER: i32 = 140_000;

/// Processes create the schema one after the other.
const LOCK: i64 = 0x6471_6a62;

/// The versions of tables and functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Installed {
    version: i64,
    functions: i64,
}

const NOTHING: Installed = Installed { version: 0, functions: 0 };
const LATEST: Installed = Installed { version: VERSION, functions: FUNCTIONS_VERSION };

impl Installed {
    fn is_newer(self) -> bool {
        self.version > LATEST.version || self.functions > LATEST.functions
    }
}

fn functions(schema: &str) -> String {
    let functions = FUNCTIONS.join("\n").replace("{planned}", PLANNED).replace("{channel}", schema);
    in_schema(schema, &functions).into_owned()
}

/// Returns the SQL to create or update the schema, and to grant a role the rights to use it. One
/// `DO` statement creates or updates everything, so that part is atomic; the grants follow.
pub(crate) fn script(schema: &str, role: Option<&str>) -> String {
    let mut migrations = String::new();
    for (number, migration) in (1..).zip(MIGRATIONS) {
        migrations.push_str(&format!("IF known < {number} THEN\n\n{migration}\nEND IF;\n"));
    }
    let mut sql = format!(
        r#"-- The schema {schema} of dq-postgres: tables of version {VERSION}, functions of version {FUNCTIONS_VERSION}. It changes
-- nothing that a newer version has installed. Run it as the schema's owner.
DO $migrate$
DECLARE
    known integer := 0;
    known_functions integer := 0;
    old_functions oid[];
    executors text;
    new_function text;
BEGIN
-- Processes and people who run this at the same time wait for each other.
PERFORM pg_advisory_xact_lock({LOCK});
IF to_regclass('"{schema}".meta') IS NOT NULL THEN
    SELECT version, functions INTO known, known_functions FROM "{schema}".meta;
ELSIF to_regnamespace('"{schema}"') IS NULL THEN
    CREATE SCHEMA "{schema}";
END IF;
SELECT array_agg(DISTINCT p.oid),
        string_agg(DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, ', ')
    INTO old_functions, executors
    FROM pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner)))
    WHERE pronamespace = to_regnamespace('"{schema}"') AND privilege_type = 'EXECUTE';
{migrations}IF known <= {VERSION} AND known_functions <= {FUNCTIONS_VERSION} THEN

{functions}
UPDATE "{schema}".meta SET version = {VERSION}, functions = {FUNCTIONS_VERSION};
-- Roles that could execute any old function may execute the new ones.
FOR new_function IN
    SELECT oid::regprocedure FROM pg_proc
    WHERE pronamespace = to_regnamespace('"{schema}"') AND oid <> ALL (old_functions)
LOOP
    EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || new_function || ' FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION ' || new_function || ' TO ' || executors;
END LOOP;
END IF;
END $migrate$;
"#,
        migrations = in_schema(schema, &migrations),
        functions = functions(schema),
    );
    if let Some(role) = role {
        let role = role.replace('"', "\"\"");
        for right in [
            "USAGE ON",
            "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN",
            "USAGE, SELECT, UPDATE ON ALL SEQUENCES IN",
            "EXECUTE ON ALL FUNCTIONS IN",
        ] {
            sql.push_str(&format!("GRANT {right} SCHEMA \"{schema}\" TO \"{role}\";\n"));
        }
    }
    sql
}

/// Creates or migrates the schema if necessary, and grants a role the rights to use it.
pub(crate) async fn ensure(pool: &Pool, schema: &str, role: Option<&str>) -> Result<Migrated> {
    let found = installed(pool, schema).await?;
    let is_current = found.is_newer() || found == LATEST && has_functions(pool, schema).await?;
    if !is_current || role.is_some() {
        // What is installed is read again under the lock: another process may migrate at the same
        // time.
        let script = script(schema, role);
        // A new schema has nothing to drop, which the server would tell in a notice.
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED;\nSET LOCAL client_min_messages = warning;\n\
             {script}COMMIT"
        );
        let done = pool.execute_all(&sql).await;
        done.map_err(|error| if is_current { error } else { not_migrated(schema, found, error) })?;
    }
    Ok(match found.version {
        0 => Migrated::Created,
        _ if is_current => Migrated::Unchanged,
        _ => Migrated::Updated,
    })
}

/// Adds both versions to an error about a missing right.
fn not_migrated(schema: &str, found: Installed, error: Error) -> Error {
    if error.kind() != ErrorKind::Config || found == NOTHING {
        return error;
    }
    let Installed { version, functions } = found;
    let what = format!(
        "the schema {schema} (tables {version}, functions {functions}) differs from this program's \
         (tables {VERSION}, functions {FUNCTIONS_VERSION}), and this role may not change it: {error}"
    );
    Error::new(ErrorKind::Config, what)
        .remedy("run `dq migrate` as the schema's owner, or the SQL of `dq migrate --print`")
        .source(error)
}

/// Compares names and bodies: a schema has functions of other versions, too.
async fn has_functions(pool: &Pool, schema: &str) -> Result<bool> {
    let statement = Statement {
        sql: "SELECT proname::text, prosrc FROM pg_proc
            WHERE pronamespace = to_regnamespace(quote_ident($1))::oid",
        effect: Effect::Reads,
    };
    let rows = pool.query(statement, &[(&schema as _, Type::TEXT)]).await?;
    // A script that is kept on Windows may have other line ends.
    let found: HashSet<(&str, String)> =
        rows.iter().map(|row| (row.get(0), row.get::<_, &str>(1).replace('\r', ""))).collect();
    let sql = functions(schema);
    Ok(definitions(&sql).all(|(name, body)| found.contains(&(name, body.to_owned()))))
}

/// The name and body of each function in our own SQL.
fn definitions(sql: &str) -> impl Iterator<Item = (&str, &str)> {
    sql.split("CREATE OR REPLACE FUNCTION ").skip(1).filter_map(|definition| {
        let (signature, rest) = definition.split_once("$$")?;
        let (_, name) = signature.split_once('(')?.0.split_once('.')?;
        Some((name, rest.split_once("$$")?.0))
    })
}

pub(crate) async fn exists(pool: &Pool, schema: &str) -> Result<bool> {
    Ok(installed(pool, schema).await? != NOTHING)
}

/// Returns what is installed, or [`NOTHING`].
///
/// # Errors
/// `Incompatible` for an old server, for a schema that is not ours, and for a version that this
/// library may no longer read and write.
async fn installed(pool: &Pool, schema: &str) -> Result<Installed> {
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
        (false, false) => return Ok(NOTHING),
        (false, true) => return Err(foreign(schema)),
        (true, _) => {}
    }
    let sql = in_schema(
        schema,
        "SELECT version::bigint, functions::bigint, min_writer::bigint, min_reader::bigint
            FROM dq.meta",
    );
    let statement = Statement { sql: &sql, effect: Effect::Reads };
    let rows = match pool.query(statement, &[]).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == ErrorKind::Incompatible => return Err(foreign(schema)),
        Err(error) => return Err(error),
    };
    let row = rows.first().ok_or_else(|| foreign(schema))?;
    for (verb, minimum) in [("read", row.get("min_reader")), ("write", row.get("min_writer"))] {
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
    Ok(Installed { version: row.get("version"), functions: row.get("functions") })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_functions_have_a_new_version() {
        let text = FUNCTIONS.concat() + PLANNED;
        // FNV-1a.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(
            (FUNCTIONS_VERSION, hash),
            (1, 0x406c_97e7_6381_a4e9),
            "the functions have changed: if the version here was released, raise FUNCTIONS_VERSION"
        );
    }

    #[test]
    fn each_function_is_compared() {
        for schema in ["dq", "jobs"] {
            let sql = functions(schema);
            let names: Vec<&str> = definitions(&sql).map(|(name, _)| name).collect();
            assert_eq!(
                names.len(),
                FUNCTIONS.concat().matches("CREATE OR REPLACE FUNCTION").count()
            );
            assert!(names.contains(&"store") && names.contains(&"schedule"), "{names:?}");
        }
    }
}
