//! All integration tests in one program, because linking is what takes long.

mod left_behind;
mod rabbit_cluster;
mod rabbitmq;
mod redis;
mod topologies;
