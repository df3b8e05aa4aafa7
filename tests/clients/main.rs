//! Workers in Python, TypeScript and Java: the checks of each client, and many workers on one `dq serve`,
//! which is restarted or killed meanwhile.

mod checks;
mod idle;
mod programs;
mod recorder;
mod rolling;
mod runs;
mod server;
mod storm;
