//! Saving the cluster.

use tonic::Code;

use super::{Client, Error, Result};
use crate::proto;
use crate::proto::checkpoints_client::CheckpointsClient;

impl Client {
    /// Saves the whole cluster, to where its servers were told to; training may go on meanwhile. It is an exact cut if no
    /// push is under way: after every trainer's [`Client::flush`]. `watch` is told the bytes written so far and about how
    /// many it will be. However long it takes, the client's timeout does not end it.
    pub async fn save_checkpoint(
        &self,
        label: &str,
        incremental: bool,
        mut watch: impl FnMut(u64, u64),
    ) -> Result<proto::SaveProgress> {
        let message = || proto::SaveRequest { label: label.into(), incremental };
        let cluster = self.cluster.load_full();
        let mut stream = self
            .call(0, &cluster, async |shard, _| {
                CheckpointsClient::new(shard.channel()).save(self.options.credentials.request(message())).await
            })
            .await?
            .into_inner();
        let address = cluster.shards[0].address.clone();
        let refused =
            |code, message: &str| Error::Refused { shard: 0, address: address.clone(), code, message: message.into() };
        while let Some(progress) = stream.message().await.map_err(|s| refused(s.code(), s.message()))? {
            watch(progress.bytes, progress.expected_bytes);
            if progress.complete {
                return Ok(progress);
            }
        }
        Err(refused(Code::Aborted, "it ended before the checkpoint was complete"))
    }
}
