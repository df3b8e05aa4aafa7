//! Private servers for tests and benchmarks: own ports, own directories, gone with the process that
//! started them.
