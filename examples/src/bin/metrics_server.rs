//! Metrics for Prometheus at `/metrics`, health for a readiness probe at `/ready`; here by axum, beside a host that works.
//!
//! `cargo run -p moonring-examples --bin metrics_server -- 127.0.0.1:9100`

use std::error::Error;
use std::sync::Arc;

use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::{Router, extract::State, response::IntoResponse, routing::get};
use moonring::store::{MemoryOptions, MemoryStore};
use moonring::{Engine, HealthState, metrics::Metrics};
use prometheus_client::{encoding::text, registry::Registry};
use tokio::net::TcpListener;

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let mut page = String::new();
    let status = match text::encode(&mut page, &registry) {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (status, [(CONTENT_TYPE, kind)], page)
}

/// Ready while some kind of op works. Not for a liveness probe: starting anew doesn't mend a store.
async fn ready(State(engine): State<Arc<Engine>>) -> impl IntoResponse {
    let health = engine.health();
    let status = match health.state {
        HealthState::Down => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    (
        status,
        format!("{}\n{}", health.state, health.reasons.join("\n")),
    )
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:9100".into());
    let store = Arc::new(MemoryStore::new(MemoryOptions::default())?);
    let engine = Arc::new(Engine::builder(store).start()?);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics::new(&engine)));
    let router = Router::new()
        .route("/metrics", get(metrics).with_state(Arc::new(registry)))
        .route("/ready", get(ready).with_state(Arc::clone(&engine)));

    // The host's work.
    let client = engine.client();
    tokio::spawn(async move {
        for key in 0_u64.. {
            if client
                .lookup(&key.to_le_bytes().map(|byte| byte | 1))
                .await
                .is_err()
            {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}
