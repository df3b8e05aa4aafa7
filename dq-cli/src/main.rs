//! The program `dq`, with the stores of this workspace.

dq_cli::main!();
