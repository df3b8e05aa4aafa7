//! Servers end with the process that started them, however it ends.
//!
//! The child process is this test program; an environment variable selects its task.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dq_servers::{Redis, shared_postgres, shared_rabbitmq, shared_redis};

const TASK: &str = "DQ_SERVERS_TEST_CHILD";

/// The tests' child process; without the variable it does nothing. A line for [`start`] begins with
/// a line break, because the test harness has begun a line.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    if task == "rabbitmq" {
        let (rabbit, no_dir) = (shared_rabbitmq(), Path::new("none"));
        for (port, dir) in [(rabbit.port(), rabbit.dir()), (rabbit.epmd_port(), no_dir)] {
            println!("\nserver {port} {}", dir.display());
        }
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    if task == "postgres" {
        let postgres = shared_postgres();
        let process = postgres.execute("SELECT pid FROM pg_stat_activity LIMIT 1");
        postgres.freeze();
        for dir in [postgres.dir(), &Path::new("/proc").join(process)] {
            println!("\nserver {} {}", postgres.port(), dir.display());
        }
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    let other = Redis::start();
    if task == "frozen" {
        shared_redis().freeze();
        other.kill();
    }
    for redis in [shared_redis(), &other] {
        println!("\nserver {} {}", redis.port(), redis.dir().display());
    }
    if task == "exit" {
        std::process::exit(0);
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn a_killed_process_leaves_no_server() {
    for task in ["killed", "frozen", "rabbitmq", "postgres"] {
        let (mut child, servers) = start(task);
        for (port, dir) in &servers {
            // The second server of `frozen` is killed already.
            if task != "frozen" {
                TcpStream::connect(("127.0.0.1", *port)).expect("the server is running");
            }
            assert!(dir == "none" || Path::new(dir).exists(), "{task}");
        }
        child.kill().expect("a child");
        wait_until_removed(&servers);
        child.wait().expect("a child");
    }
}

#[test]
fn a_process_that_exits_without_drops_leaves_no_server() {
    let (mut child, servers) = start("exit");
    assert!(child.wait().expect("a child").success());
    wait_until_removed(&servers);
}

fn start(task: &str) -> (Child, Vec<(u16, String)>) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "left_behind::child", "--nocapture"])
        .env(TASK, task)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let lines = output.lines().map_while(Result::ok);
    let servers = lines.filter_map(|line| {
        let (port, dir) = line.strip_prefix("server ")?.split_once(' ')?;
        Some((port.parse().ok()?, dir.to_owned()))
    });
    let servers = servers.take(2).collect();
    (child, servers)
}

fn wait_until_removed(servers: &[(u16, String)]) {
    assert_eq!(servers.len(), 2);
    let deadline = Instant::now() + Duration::from_secs(120);
    for (port, dir) in servers {
        while TcpStream::connect(("127.0.0.1", *port)).is_ok() || Path::new(dir).exists() {
            assert!(Instant::now() < deadline, "port {port} or {dir} still exists");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
