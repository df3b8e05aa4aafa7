//! Workers in Python, TypeScript and Java: the checks and quick starts of each client, and many
//! workers on one `dq serve`, which is restarted or killed meanwhile.

mod checks;
mod idle;
mod programs;
mod quick_starts;
mod recorder;
mod rolling;
mod runs;
mod server;
mod storm;
