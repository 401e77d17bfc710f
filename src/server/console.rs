//! The console: one page, and the numbers that it shows. The shard that is asked asks the others.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tonic::{Code, Status};

use super::admin;
use super::shard::Shard;
use crate::client::{self, total_stats};
use crate::proto;
use crate::proto::admin_client::AdminClient;

/// Everything in one file: it loads nothing.
const PAGE: &str = include_str!("console.html");
/// What stands in the page where its nonce goes.
const NONCE: &str = "{nonce}";
/// How long a shard may take to answer before it is shown as one that does not.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer is handed out again, so that many pages cost as much as one. Below the second after which a page
/// asks again, so that one page always gets new numbers.
const FRESH: Duration = Duration::from_millis(900);

type Other = Result<AdminClient<tonic::transport::Channel>, String>;

/// What the pages share.
struct Console {
    shard: Arc<Shard>,
    /// The other shards, by number, and this one too; connected when they are first asked.
    others: Vec<Other>,
    /// The last answer. Held while there is a new one to collect, so that nobody else collects it as well.
    last: Mutex<Option<(Instant, Bytes)>>,
}

/// The routes of the console.
pub fn routes(shard: Arc<Shard>) -> Router {
    let connect = |address: &String| {
        client::connect_shard(address, &shard.credentials).map(AdminClient::new).map_err(|e| e.to_string())
    };
    let others = shard.topology.shards.iter().map(connect).collect();
    let console = Arc::new(Console { shard, others, last: Mutex::new(None) });
    Router::new().route("/", get(page)).route("/api/status", get(status)).with_state(console)
}

/// The page. It may run its own script and ask its own server; the browser refuses whatever else came into it.
async fn page() -> Response {
    let mut random = [0; 16];
    if let Err(error) = getrandom::fill(&mut random) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let nonce = format!("{:032x}", u128::from_le_bytes(random));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = PAGE.replace(NONCE, &nonce);
    let kind = (header::CONTENT_TYPE, "text/html; charset=utf-8");
    (headers(kind), [(header::CONTENT_SECURITY_POLICY, policy)], page).into_response()
}

async fn status(State(console): State<Arc<Console>>) -> Response {
    let mut last = console.last.lock().await;
    let fresh = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, text)| text.clone());
    let text = match fresh {
        Some(text) => text,
        None => {
            let text = Bytes::from(console.collect().await.to_string());
            *last = Some((Instant::now(), text.clone()));
            text
        }
    };
    drop(last);
    (headers((header::CONTENT_TYPE, "application/json")), text).into_response()
}

fn headers(kind: (HeaderName, &'static str)) -> [(HeaderName, &'static str); 4] {
    [
        kind,
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Numbers are old at once, and a nonce is used once.
        (header::CACHE_CONTROL, "no-store"),
    ]
}

/// Why there is nothing of a shard.
struct Missing {
    /// `down`: nobody is there. `silent`: somebody is, and gives no answer.
    state: &'static str,
    reason: String,
}

impl Console {
    /// Asks all shards once.
    async fn collect(&self) -> Value {
        let shard = &self.shard;
        let addresses = &shard.topology.shards;
        let answers = join_all((0..addresses.len()).map(|number| self.ask(number))).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let shards: Vec<Value> = (answers.iter().zip(addresses).enumerate())
            .map(|(number, (answer, address))| match answer {
                Ok(stats) => shard_json(number, address, stats),
                Err(Missing { state, reason }) => {
                    json!({ "shard": number, "address": address, "state": state, "reason": reason })
                }
            })
            .collect();
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let tables: Vec<Value> = total_stats(&answers).values().map(|stats| table_json(shard, stats)).collect();
        json!({
            "cluster": shard.topology.cluster,
            "version": env!("CARGO_PKG_VERSION"),
            "this_shard": shard.number,
            "time_ms": now,
            "uptime_ms": shard.started.elapsed().as_millis() as u64,
            "readiness": shard.readiness().1,
            "shards": shards,
            "tables": tables,
        })
    }

    async fn ask(&self, number: usize) -> Result<proto::StatsResponse, Missing> {
        if number == self.shard.number as usize {
            let stats = self.shard.run(|shard| admin::stats(shard, "")).await;
            return stats.map_err(|status| missing(&status));
        }
        let mut other = self.others[number].clone().map_err(|reason| Missing { state: "down", reason })?;
        let request = self.shard.credentials.request(proto::StatsRequest::default());
        match tokio::time::timeout(PATIENCE, other.stats(request)).await {
            Ok(Ok(answer)) if answer.get_ref().status.is_some() => Ok(answer.into_inner()),
            Ok(Ok(_)) => Err(Missing { state: "silent", reason: "its version is too old to tell".into() }),
            Ok(Err(status)) => Err(missing(&status)),
            Err(_) => {
                let reason = format!("no answer in {} s: recovering, or busy", PATIENCE.as_secs());
                Err(Missing { state: "silent", reason })
            }
        }
    }
}

/// What a status says of the shard that it comes from, or that it did not come from.
fn missing(status: &Status) -> Missing {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(|cause| cause.source()) {
        cause = Some(deeper);
    }
    let state = if status.code() == Code::Unavailable { "down" } else { "silent" };
    Missing { state, reason: cause.map_or_else(|| status.message().into(), |cause| cause.to_string()) }
}

fn shard_json(number: usize, address: &str, stats: &proto::StatsResponse) -> Value {
    json!({
        "shard": number,
        "address": address,
        "state": stats.status.as_ref().map(|status| &status.state),
        "memory_used": stats.memory_used,
        "memory_budget": stats.memory_budget,
        "last_lsn": stats.last_lsn,
        "open_clients": stats.open_clients,
        "status": stats.status,
    })
}

/// A table of all shards that have answered, and how this one stores it.
fn table_json(shard: &Shard, stats: &proto::TableStats) -> Value {
    let mut table = json!(stats);
    // Before the first push there is nothing to predict from.
    let curve = stats.curve.as_ref().filter(|curve| curve.references > 0.0);
    table["curve"] = json!(curve.map_or(&[][..], |curve| &curve.points));
    // Unknown while this shard recovers, or where the table was dropped meanwhile.
    if let (Ok(spec), Ok(format)) = (shard.engine.spec(&stats.table), shard.engine.stored_format(&stats.table)) {
        table["dim"] = spec.dim.into();
        table["precision"] = format.parts().0.to_string().into();
        table["cache"] = spec.cache.to_string().into();
    }
    table
}
