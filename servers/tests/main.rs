//! All integration tests in one program, because linking is what takes long.

mod left_behind;
mod rabbitmq;
mod redis;
