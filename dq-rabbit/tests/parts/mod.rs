mod ladder;
mod link;
mod refused;
mod rig;
mod topology;
