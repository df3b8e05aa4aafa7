//! The program `dq`, with this workspace's stores.

dq_cli::main!();
