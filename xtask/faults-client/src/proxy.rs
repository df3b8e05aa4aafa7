//! A proxy that breaks connections on command.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use dq::BoxError;
use dq_testkit::faults::TcpProxy;

/// Prints the port, then obeys commands until standard input ends: `pause`, `pause-requests`,
/// `pause-replies`, `resume`, `delay MILLIS`, `cut-requests BYTES`, `cut-replies BYTES`,
/// `reset-replies BYTES`, `reset`, `abandon`.
pub(crate) async fn run(address: &str) -> Result<(), BoxError> {
    let proxy = TcpProxy::to(address.to_owned()).await;
    println!("{}", proxy.port());
    stdout().flush()?;
    let obey = move || -> Result<(), BoxError> {
        for line in stdin().lock().lines() {
            let line = line?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["pause"] => proxy.pause(),
                ["pause-requests"] => proxy.pause_requests(),
                ["pause-replies"] => proxy.pause_replies(),
                ["resume"] => proxy.resume(),
                ["delay", millis] => proxy.delay(Duration::from_millis(millis.parse()?)),
                ["reset-replies", bytes] => proxy.reset_reply_after(bytes.parse()?),
                ["reset"] => proxy.reset(),
                ["abandon"] => proxy.abandon(),
                ["cut-requests", bytes] => proxy.cut_request_after(bytes.parse()?),
                ["cut-replies", bytes] => proxy.cut_reply_after(bytes.parse()?),
                _ => return Err(format!("no such command: {line:?}").into()),
            }
        }
        Ok(())
    };
    tokio::task::spawn_blocking(obey).await?
}
