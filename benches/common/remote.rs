//! The Rust client as a [`Store`].

use hotrow::client::{Client, Options};
use hotrow::{Assign, Pull, Push, RowFormat, TableSpec};
use tokio::runtime::Runtime;

use super::Store;
use super::workload::initial_rows;

/// A table of a server, through a client of its own with one connection. It is alone on its runtime, which the thread that
/// waits for an answer drives itself: with more threads, each request would wake some of them on its way.
pub struct Remote {
    pub runtime: Runtime,
    pub client: Client,
    table: String,
}

impl Remote {
    /// `rows` is how rows travel. Gradients travel likewise, but for int8, which only rows can be sent in.
    pub fn connect(address: &str, rows: RowFormat, table: &str) -> Remote {
        let gradients = if rows == RowFormat::Int8 { RowFormat::F32 } else { rows };
        let options = Options { rows, gradients, connections: 1, ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(Client::connect_with(&[address], options)).unwrap();
        Remote { runtime, client, table: table.into() }
    }

    /// Makes the table with all its rows.
    pub fn create(&self, spec: &TableSpec) {
        let every: Vec<u64> = (0..spec.rows().unwrap()).collect();
        self.runtime.block_on(async {
            self.client.create_table(spec).await.unwrap();
            for keys in every.chunks(32_768) {
                let weights = initial_rows(keys, spec.dim);
                let assign = Assign { table: &spec.name, keys, weights: &weights, state: None };
                self.client.assign(&assign).await.unwrap();
            }
        });
    }
}

impl Store for Remote {
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> anyhow::Result<()> {
        Ok(self.runtime.block_on(self.client.pull_into(&[Pull { table: &self.table, keys }], out))?)
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> anyhow::Result<()> {
        let push = Push { table: &self.table, keys, gradients, ..Push::default() };
        Ok(self.runtime.block_on(self.client.push(&[push]))?)
    }
}
