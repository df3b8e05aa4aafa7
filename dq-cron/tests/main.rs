//! All integration tests in one program, because linking is what takes long.

mod all_zones;
mod times;
