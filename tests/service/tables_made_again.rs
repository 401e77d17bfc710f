//! A table that somebody else drops and makes again with another dim: a client that knows the old one says so, and then
//! knows the new one. It never hands out pieces of rows.

use hotrow::{PooledPull, Pooling, Pull, TableSpec};

use crate::cluster::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_notices_that_a_table_has_another_dim() {
    let cluster = Cluster::start(2, &[]).await;
    let (old, other) = (cluster.client().await, cluster.client().await);
    let keys = [1, 2, 3, 500];
    for (before, after) in [(8, 16), (16, 8)] {
        for pooled in [false, true] {
            let table = &format!("t{before}{pooled}")[..];
            let pull = async || match pooled {
                false => old.pull(&[Pull { table, keys: &keys }]).await,
                true => {
                    let (keys, offsets, weights) = (&keys, &[0, 2], None);
                    old.pull_pooled(&[PooledPull { table, keys, offsets, weights, pooling: Pooling::Sum }]).await
                }
            };
            let rows = if pooled { 2 } else { keys.len() };
            other.create_table(&TableSpec::dense(table, 1000, before)).await.unwrap();
            assert_eq!(pull().await.unwrap().len(), rows * before);
            other.drop_table(table).await.unwrap();
            other.create_table(&TableSpec::dense(table, 1000, after)).await.unwrap();
            let error = pull().await.expect_err("the answer has rows of another length").to_string();
            assert!(error.contains("another dim: try again"), "{error}");
            assert_eq!(pull().await.unwrap().len(), rows * after);
        }
    }
}
