//! Tests the `redisson` backend with real Redisson clients in several versions on the same queues.
//! A *peer* is such a client, a Java program in its own process. `sql` tests the SQL functions of
//! the `postgres` backend with programs in other languages.

mod bridge;
mod golden;
mod peer;
mod rust;
mod shared_queue;
mod sql;

/// Generates each test for each version, in a module named after the test.
macro_rules! for_each_version {
    ($($test:ident)*) => {
        $(
            mod $test {
                use super::$test;
                use crate::peer::Version;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v3_16_6() {
                    $test(Version::V3_16_6).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v3_20_1() {
                    $test(Version::V3_20_1).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v3_23_4() {
                    $test(Version::V3_23_4).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn v4_7_0() {
                    $test(Version::V4_7_0).await;
                }
            }
        )*
    };
}
use for_each_version;
