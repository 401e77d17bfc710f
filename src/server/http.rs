//! The HTTP port: metrics and probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::shard::{Recovering, Shard};

/// The routes of a shard.
pub fn routes(shard: Arc<Shard>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/", get(async || "hotrow: /metrics, /healthz, /readyz\n"))
        .with_state(shard)
}

async fn metrics(State(shard): State<Arc<Shard>>) -> Response {
    // Reading the statistics takes locks.
    match tokio::task::spawn_blocking(move || shard.metrics.text()).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(shard): State<Arc<Shard>>) -> (StatusCode, String) {
    let recovering = *shard.recovering.lock();
    match (recovering, *shard.draining.borrow()) {
        (Some(Recovering { log, bytes, total_bytes, changes }), _) => {
            let text = match log {
                false => format!("recovering: {bytes} of {total_bytes} bytes of the checkpoint read\n"),
                true => {
                    format!("recovering: {changes} changes applied, {bytes} of {total_bytes} bytes of the log read\n")
                }
            };
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        (None, false) => (StatusCode::OK, "ready\n".into()),
        (None, true) => (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into()),
    }
}
