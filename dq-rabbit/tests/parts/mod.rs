mod connection;
mod errors;
mod fixture;
mod ladder;
mod topology;
