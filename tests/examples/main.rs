//! The examples, run as a user would: started, asked nonsense, killed, started again.

mod order_timeout;
mod program;
mod quickstart;
