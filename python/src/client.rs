//! The client.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use hotrow::client::{Credentials, Error, KeyCursor, Options, total_stats};
use hotrow::server::config::TableConfig;
use hotrow::{Alteration, Assign, PooledPull, Pooling, Pull, Push, TableSpec, Touch};
use numpy::{PyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::arrays::{Array, Keys, Numbers, Rows};
use crate::errors;
use crate::pending::{PendingPull, PendingPush};
use crate::runtime::{call, runtime, wait};

type Inner = hotrow::client::Client;

/// A table's part of a push: name, keys, gradients, learning rate, step.
type PushArg<'py> = (String, Keys<'py>, Numbers<'py>, Option<f32>, Option<u64>);
/// A table's part of a pooled pull: name, keys, offsets, weights.
type PooledArg<'py> = (String, Keys<'py>, Keys<'py>, Option<Numbers<'py>>);
/// A row: weights, state, whether it is cached, dirty, stored.
type RowAnswer<'py> = (Array<'py, f32>, Array<'py, f32>, bool, bool, bool);

/// A connection to a cluster.
#[pyclass(frozen)]
pub struct Client {
    /// None when it is closed.
    client: RwLock<Option<Arc<Inner>>>,
}

impl Client {
    fn open(&self, py: Python<'_>) -> PyResult<Arc<Inner>> {
        let client = self.client.read().expect("nothing panics with it");
        client.clone().ok_or_else(|| errors::plain(py, "the client is closed"))
    }
}

#[pymethods]
impl Client {
    /// Connects through any of several addresses. Certificates and key are PEM.
    #[new]
    #[pyo3(signature = (addresses, *, token, ca, cert, key, domain, timeout, connections, rows, gradients, lookahead))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn connect(
        py: Python<'_>,
        addresses: Vec<String>,
        token: Option<&str>,
        ca: Option<Vec<u8>>,
        cert: Option<Vec<u8>>,
        key: Option<Vec<u8>>,
        domain: Option<String>,
        timeout: f64,
        connections: usize,
        rows: &str,
        gradients: &str,
        lookahead: usize,
    ) -> PyResult<Client> {
        let mut credentials = Credentials::default();
        if let Some(token) = token {
            credentials = credentials.token(token).map_err(|error| errors::exception(py, &error))?;
        }
        if let Some(ca) = ca {
            credentials = credentials.ca(ca);
        }
        if let (Some(cert), Some(key)) = (cert, key) {
            credentials = credentials.identity(cert, key);
        }
        if let Some(domain) = domain {
            credentials = credentials.domain(domain);
        }
        let wrong = |name: &str, reason: String| errors::plain(py, &format!("{name}: {reason}"));
        let options = Options {
            credentials,
            timeout: Duration::try_from_secs_f64(timeout).map_err(|e| wrong("timeout", e.to_string()))?,
            connections,
            rows: rows.parse().map_err(|e| wrong("rows", e))?,
            gradients: gradients.parse().map_err(|e| wrong("gradients", e))?,
            lookahead,
            ..Options::default()
        };
        let client = call(py, || Inner::connect_with(&addresses, options))?;
        Ok(Client { client: RwLock::new(Some(Arc::new(client))) })
    }

    /// Where the shards are.
    fn addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.open(py)?.topology().shards)
    }

    /// Finishes the pushes under way and tells the shards that this client is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // What is still waited for holds it, too, until it is there.
        let client = self.client.write().expect("nothing panics with it").take();
        match client {
            Some(client) => wait(py, || client.close()),
            None => Ok(()),
        }
    }

    /// Makes a table, described in JSON; the answer is [`table_json`]'s.
    fn create_table(&self, py: Python<'_>, config: &str) -> PyResult<String> {
        let client = self.open(py)?;
        let invalid = |reason: String| errors::invalid(py, &reason);
        let config: TableConfig = serde_json::from_str(config).map_err(|e| invalid(e.to_string()))?;
        let spec = config.spec().map_err(invalid)?;
        let footprint = call(py, || client.create_table(&spec))?;
        table_json(py, &spec, &footprint)
    }

    /// A table's spec and what it costs.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let client = self.open(py)?;
        let (spec, footprint) = call(py, || client.describe_table(name))?;
        table_json(py, &spec, &footprint)
    }

    /// All tables.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let client = self.open(py)?;
        let tables = call(py, || client.list_tables())?;
        tables.iter().map(|(spec, footprint)| table_json(py, spec, footprint)).collect()
    }

    /// Changes hyper-parameters. A clipping norm of 0 ends clipping.
    fn alter_table(
        &self,
        py: Python<'_>,
        name: &str,
        learning_rate: Option<f32>,
        weight_decay: Option<f32>,
        clip_norm: Option<f32>,
    ) -> PyResult<()> {
        let client = self.open(py)?;
        let clip_norm = clip_norm.map(|norm| (norm != 0.0).then_some(norm));
        call(py, || client.alter_table(name, Alteration { learning_rate, weight_decay, clip_norm })).map(drop)
    }

    /// Forgets a table.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let client = self.open(py)?;
        call(py, || client.drop_table(name))
    }

    /// Reads rows of several tables, into `out` if it is given.
    fn pull<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<(String, Keys<'py>)>,
        out: Option<PyReadwriteArray1<'py, f32>>,
    ) -> PyResult<(Option<Array<'py, f32>>, Vec<usize>)> {
        let client = self.open(py)?;
        let pulls = pulls(&tables)?;
        match out {
            None => {
                let (rows, dims) = call(py, || pull_rows(&client, &pulls))?;
                Ok((Some(PyArray1::from_vec(py, rows)), dims))
            }
            Some(mut out) => {
                let out = out.as_slice_mut()?;
                call(py, || client.pull_into(&pulls, out))?;
                Ok((None, Vec::new()))
            }
        }
    }

    /// Begins to read rows.
    fn pull_later(&self, py: Python<'_>, tables: Vec<(String, Keys<'_>)>) -> PyResult<PendingPull> {
        let client = self.open(py)?;
        let owned: Vec<(String, Vec<u64>)> = tables
            .iter()
            .map(|(table, keys)| Ok((table.clone(), keys.as_slice()?.to_vec())))
            .collect::<PyResult<_>>()?;
        let (there, rows) = oneshot::channel();
        let task = runtime(py)?.spawn(async move {
            let pulls: Vec<Pull<'_>> = owned.iter().map(|(table, keys)| Pull { table, keys }).collect();
            // Whoever asked may be gone.
            let _ = there.send(pull_rows(&client, &pulls).await);
        });
        Ok(PendingPull::new(rows, task.abort_handle()))
    }

    /// Reads bags of rows as one row each.
    fn pull_pooled<'py>(&self, py: Python<'py>, tables: Vec<PooledArg<'py>>, mean: bool) -> PyResult<Rows<'py>> {
        let client = self.open(py)?;
        let pooling = if mean { Pooling::Mean } else { Pooling::Sum };
        let pulls: Vec<PooledPull<'_>> = tables
            .iter()
            .map(|(table, keys, offsets, weights)| {
                let weights = weights.as_ref().map(|weights| weights.as_slice()).transpose()?;
                Ok(PooledPull { table, keys: keys.as_slice()?, offsets: offsets.as_slice()?, weights, pooling })
            })
            .collect::<PyResult<_>>()?;
        let (rows, dims) = call(py, || async {
            let rows = client.pull_pooled(&pulls).await?;
            Ok((rows, dims(&client, pulls.iter().map(|pull| pull.table)).await?))
        })?;
        Ok((PyArray1::from_vec(py, rows), dims))
    }

    /// Applies gradients, and returns when they are applied.
    fn push(&self, py: Python<'_>, tables: Vec<PushArg<'_>>) -> PyResult<()> {
        let client = self.open(py)?;
        let pushes = pushes(&tables)?;
        call(py, || client.push(&pushes))
    }

    /// Begins to apply gradients. The arrays may be changed when this returns.
    fn push_later(&self, py: Python<'_>, tables: Vec<PushArg<'_>>) -> PyResult<PendingPush> {
        let client = self.open(py)?;
        let borrowed = pushes(&tables)?;
        let pending = call(py, || client.push_later(&borrowed))?;
        // If the shards change their topology meanwhile, the push is routed again, and needs its numbers again.
        let owned: Vec<OwnedPush> = borrowed.iter().map(OwnedPush::of).collect();
        let (there, applied) = oneshot::channel();
        runtime(py)?.spawn(async move {
            let sequence = pending.sequence();
            let mut outcome = pending.done().await;
            if let Err(Error::StaleTopology) = outcome {
                let pushes: Vec<Push<'_>> = owned.iter().map(OwnedPush::push).collect();
                outcome = match client.refresh().await {
                    Ok(()) => client.push_again(sequence, &pushes).await,
                    Err(error) => Err(error),
                };
            }
            // Whoever began it may be gone.
            let _ = there.send(outcome);
        });
        Ok(PendingPush::new(applied))
    }

    /// Brings rows into the cache.
    fn touch(&self, py: Python<'_>, tables: Vec<(String, Keys<'_>)>) -> PyResult<()> {
        let client = self.open(py)?;
        let touches: Vec<Touch<'_>> =
            tables.iter().map(|(table, keys)| Ok(Touch { table, keys: keys.as_slice()? })).collect::<PyResult<_>>()?;
        call(py, || client.touch(&touches))
    }

    /// Sets rows.
    fn assign(
        &self,
        py: Python<'_>,
        table: &str,
        keys: Keys<'_>,
        weights: Numbers<'_>,
        state: Option<Numbers<'_>>,
    ) -> PyResult<()> {
        let client = self.open(py)?;
        let state = state.as_ref().map(|state| state.as_slice()).transpose()?;
        let assign = Assign { table, keys: keys.as_slice()?, weights: weights.as_slice()?, state };
        call(py, || client.assign(&assign))
    }

    /// Everything about one row.
    fn inspect<'py>(&self, py: Python<'py>, table: &str, key: u64) -> PyResult<RowAnswer<'py>> {
        let client = self.open(py)?;
        let row = call(py, || client.inspect(table, key))?;
        let array = |numbers| PyArray1::from_vec(py, numbers);
        Ok((array(row.weights), array(row.state), row.cached, row.dirty, row.stored))
    }

    /// The keys of all rows that were ever trained or set.
    fn keys<'py>(&self, py: Python<'py>, table: &str) -> PyResult<Array<'py, u64>> {
        let client = self.open(py)?;
        let keys = call(py, || async {
            let mut keys = Vec::new();
            let mut cursor = Some(KeyCursor::default());
            while let Some(from) = cursor {
                let (more, next) = client.scan_keys(table, &from).await?;
                keys.extend(more);
                cursor = next;
            }
            Ok(keys)
        })?;
        Ok(PyArray1::from_vec(py, keys))
    }

    /// Waits until every change that any shard has accepted is applied.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.open(py)?;
        call(py, || client.flush())
    }

    /// Saves the cluster: the checkpoint's number and the bytes written.
    fn save_checkpoint(&self, py: Python<'_>, label: &str, incremental: bool) -> PyResult<(u64, u64)> {
        let client = self.open(py)?;
        let saved = call(py, || client.save_checkpoint(label, incremental, |_, _| {}))?;
        Ok((saved.sequence, saved.bytes))
    }

    /// Counts and sizes in JSON: the tables of all shards added up, and the shards.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let client = self.open(py)?;
        let shards = call(py, || client.stats())?;
        Ok(serde_json::json!({ "tables": total_stats(&shards), "shards": shards }).to_string())
    }
}

/// A push with numbers of its own.
struct OwnedPush {
    table: String,
    keys: Vec<u64>,
    gradients: Vec<f32>,
    learning_rate: Option<f32>,
    step: Option<u64>,
}

impl OwnedPush {
    fn of(push: &Push<'_>) -> OwnedPush {
        OwnedPush {
            table: push.table.into(),
            keys: push.keys.to_vec(),
            gradients: push.gradients.to_vec(),
            learning_rate: push.learning_rate,
            step: push.step,
        }
    }

    fn push(&self) -> Push<'_> {
        Push {
            table: &self.table,
            keys: &self.keys,
            gradients: &self.gradients,
            learning_rate: self.learning_rate,
            step: self.step,
        }
    }
}

fn pulls<'a>(tables: &'a [(String, Keys<'_>)]) -> PyResult<Vec<Pull<'a>>> {
    tables.iter().map(|(table, keys)| Ok(Pull { table, keys: keys.as_slice()? })).collect()
}

fn pushes<'a>(tables: &'a [PushArg<'_>]) -> PyResult<Vec<Push<'a>>> {
    tables
        .iter()
        .map(|(table, keys, gradients, learning_rate, step)| {
            let (keys, gradients) = (keys.as_slice()?, gradients.as_slice()?);
            Ok(Push { table, keys, gradients, learning_rate: *learning_rate, step: *step })
        })
        .collect()
}

async fn pull_rows(client: &Inner, pulls: &[Pull<'_>]) -> hotrow::client::Result<(Vec<f32>, Vec<usize>)> {
    let rows = client.pull(pulls).await?;
    Ok((rows, dims(client, pulls.iter().map(|pull| pull.table)).await?))
}

async fn dims<'a>(client: &Inner, tables: impl Iterator<Item = &'a str>) -> hotrow::client::Result<Vec<usize>> {
    let mut dims = Vec::new();
    for table in tables {
        dims.push(client.dim(table).await?);
    }
    Ok(dims)
}

/// A table in words, with what it costs.
fn table_json(py: Python<'_>, spec: &TableSpec, footprint: &hotrow::proto::Footprint) -> PyResult<String> {
    let table = serde_json::to_string(&(TableConfig::of(spec), footprint));
    table.map_err(|error| errors::plain(py, &error.to_string()))
}
