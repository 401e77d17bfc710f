//! Train embeddings twice on the same data, at f32 and at int8 with a 5 % full-precision cache, and compare.
//!
//! The data is generated from a planted model: a user likes an item if their hidden vectors point the same way.
//! Users and items are drawn with the skew of real traffic, so a small cache catches most of it.
//!
//! Run with `cargo run --release --example quickstart`.

use hotrow::{CacheBudget, Engine, EngineConfig, Initializer, Optimizer, Precision, Pull, Push, Result, TableSpec};

const USERS: u64 = 200_000;
const ITEMS: u64 = 50_000;
const DIM: usize = 16;
const BATCH: usize = 4096;
const STEPS: usize = 600;

fn main() -> Result<()> {
    println!("{USERS} users and {ITEMS} items, dim {DIM}, {STEPS} steps of {BATCH} pairs\n");
    println!(
        "{:<10} {:>12} {:>10} {:>10} {:>14} {:>12}",
        "rows", "bytes/row", "total MB", "hit rate", "roundings/upd", "log loss"
    );
    let f32_bytes = train("f32", Precision::F32, 0.0)?;
    let int8_bytes = train("int8 + 5%", Precision::Int8, 5.0)?;
    println!("\nint8 with a 5 % cache takes {:.1} times less memory.", f32_bytes / int8_bytes);
    Ok(())
}

/// Trains both tables and prints a line. Returns the bytes that the tables take.
fn train(name: &str, precision: Precision, cache: f64) -> Result<f64> {
    let engine = Engine::new(EngineConfig::default())?;
    let spec = |table: &str, rows: u64| {
        TableSpec::dense(table, rows, DIM)
            .precision(precision)
            .cache(CacheBudget::Percent(cache))
            .initializer(Initializer::Uniform { low: -0.1, high: 0.1 })
            .optimizer(Optimizer::Sgd, 4.0)
    };
    let specs = [spec("users", USERS), spec("items", ITEMS)];
    let mut bytes = 0.0;
    for spec in &specs {
        engine.create(spec)?;
        bytes += spec.footprint()?.total_bytes.unwrap_or(0.0);
    }

    let mut random = Random(42);
    let mut rows = vec![0.0f32; 2 * BATCH * DIM];
    let (mut loss, mut counted) = (0.0, 0);
    for step in 0..STEPS {
        let users: Vec<u64> = (0..BATCH).map(|_| random.skewed(USERS)).collect();
        let items: Vec<u64> = (0..BATCH).map(|_| random.skewed(ITEMS)).collect();
        engine.pull(&[Pull { table: "users", keys: &users }, Pull { table: "items", keys: &items }], &mut rows)?;

        let (user_rows, item_rows) = rows.split_at(BATCH * DIM);
        let mut user_gradients = vec![0.0f32; BATCH * DIM];
        let mut item_gradients = vec![0.0f32; BATCH * DIM];
        for i in 0..BATCH {
            let (u, v) = (&user_rows[i * DIM..][..DIM], &item_rows[i * DIM..][..DIM]);
            let score: f32 = u.iter().zip(v).map(|(u, v)| u * v).sum();
            let probability = 1.0 / (1.0 + (-score).exp());
            let liked = planted(users[i], items[i]);
            if step >= STEPS * 9 / 10 {
                let p = if liked { probability } else { 1.0 - probability };
                loss -= f64::from(p.max(1e-7).ln());
                counted += 1;
            }
            let error = (probability - f32::from(u8::from(liked))) / BATCH as f32 * 16.0;
            for d in 0..DIM {
                user_gradients[i * DIM + d] = error * v[d];
                item_gradients[i * DIM + d] = error * u[d];
            }
        }
        engine.push(&[
            Push { table: "users", keys: &users, gradients: &user_gradients, ..Push::default() },
            Push { table: "items", keys: &items, gradients: &item_gradients, ..Push::default() },
        ])?;
    }

    let stats = engine.stats("users")?;
    let hit_rate = stats.pull_hit_rate().filter(|_| stats.cache_slots > 0);
    println!(
        "{:<10} {:>12.2} {:>10.1} {:>10} {:>14.3} {:>12.4}",
        name,
        specs[0].footprint()?.bytes_per_row,
        bytes / 1e6,
        hit_rate.map_or("-".into(), |rate| format!("{:.1} %", 100.0 * rate)),
        stats.write_backs_per_update().unwrap_or(0.0),
        loss / counted as f64,
    );
    Ok(bytes)
}

/// The hidden truth: four hidden numbers per user and item.
fn planted(user: u64, item: u64) -> bool {
    let hidden = |key: u64, i: u64| f64::from(Random(key * 4 + i).next() as u32) / f64::from(u32::MAX) - 0.5;
    (0..4).map(|i| hidden(user, i) * hidden(item + (1 << 32), i)).sum::<f64>() > 0.0
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A key below `rows`; a few come often, most come rarely.
    fn skewed(&mut self, rows: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (rows as f64 * unit.powi(6)) as u64
    }
}
