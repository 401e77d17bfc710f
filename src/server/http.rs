//! The HTTP port: metrics, probes and the console.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::console;
use super::shard::Shard;

/// The routes of a shard.
pub fn routes(shard: Arc<Shard>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(Arc::clone(&shard))
        .merge(console::routes(shard))
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
    let (state, text) = shard.readiness();
    let code = if state == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, format!("{text}\n"))
}
