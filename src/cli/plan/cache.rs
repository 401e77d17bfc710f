//! How large caches should be: by the curves of a running cluster, or by those of a trace.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::show::grouped;
use super::split::{Candidate, Goal, bytes, overall, split};
use super::{Args, trace};
use crate::client::total_stats;
use crate::table::{SMALL_TABLE_BYTES, TableSpec, show_bytes};

/// What was found out.
pub struct CachePlan {
    goal: Goal,
    candidates: Vec<Candidate>,
    /// Rows for each of them.
    rows: Vec<u64>,
    /// Tables that are left alone, and why.
    left_out: Vec<(String, &'static str)>,
}

const EXACT: &str = "it is f32 and needs no cache";
const UNUSED: &str = "nothing was pushed to it";

impl CachePlan {
    /// Reads the curves and shares out.
    pub async fn new(args: Args, goal: Goal) -> Result<CachePlan> {
        let (candidates, left_out) = match &args.trace {
            Some(_) => from_trace(&args)?,
            None => from_cluster(&args).await?,
        };
        CachePlan::of(goal, candidates, left_out)
    }

    fn of(goal: Goal, candidates: Vec<Candidate>, left_out: Vec<(String, &'static str)>) -> Result<CachePlan> {
        if candidates.is_empty() {
            let why: Vec<_> = left_out.iter().map(|(name, why)| format!("'{name}': {why}")).collect();
            bail!("there is no cache to size: {}", if why.is_empty() { "no tables".into() } else { why.join("; ") });
        }
        let Some(rows) = split(&candidates, goal) else {
            let most: Vec<u64> = candidates.iter().map(|c| c.points.last().map_or(0, |&(rows, _)| rows)).collect();
            let (Goal::HitRate(wanted), best) = (goal, overall(&candidates, &most)) else {
                bail!("--cache-bytes could not be shared out");
            };
            bail!(
                "--target-hit-rate {}%: at most {} would be hit, with {} of cache, which is as far as the curves go. Keys that come for \
                 the first time miss at every size",
                100.0 * wanted,
                percent(best),
                show_bytes(bytes(&candidates, &most)),
            );
        };
        Ok(CachePlan { goal, candidates, rows, left_out })
    }

    fn rows_now(&self) -> Vec<u64> {
        self.candidates.iter().map(|candidate| candidate.rows_now).collect()
    }

    /// For scripts.
    pub fn json(&self) -> Value {
        let table = |(candidate, &rows): (&Candidate, &u64)| {
            let points: Vec<Value> =
                candidate.points.iter().map(|(rows, rate)| json!({ "rows": rows, "hit_rate": rate })).collect();
            json!({
                "table": candidate.name, "policy": candidate.policy, "references": candidate.references,
                "slot_bytes": candidate.slot_bytes,
                "now": size(candidate, candidate.rows_now), "proposed": size(candidate, rows), "curve": points,
            })
        };
        let size_of_all = |rows: &[u64]| {
            json!({
                "bytes": bytes(&self.candidates, rows).ceil() as u64, "hit_rate": overall(&self.candidates, rows),
            })
        };
        let (target, most) = match self.goal {
            Goal::HitRate(rate) => (Some(rate), None),
            Goal::Bytes(bytes) => (None, Some(bytes)),
        };
        let left_out = |(table, why): &(String, &str)| json!({ "table": table, "why": why });
        json!({
            "target_hit_rate": target, "cache_bytes": most,
            "tables": self.candidates.iter().zip(&self.rows).map(table).collect::<Vec<_>>(),
            "now": size_of_all(&self.rows_now()), "proposed": size_of_all(&self.rows),
            "not_counted": self.left_out.iter().map(left_out).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let width = self.candidates.iter().map(|candidate| candidate.name.len()).max().unwrap_or(0).max(5);
        let mut text = format!(
            "{:width$} {:>6} | {:>14} {:>10} {:>8} | {:>14} {:>10} {:>8}\n",
            "table", "keys", "rows now", "cache now", "hits", "rows proposed", "cache", "hits"
        );
        let all: f64 = self.candidates.iter().map(|candidate| candidate.references).sum();
        for (candidate, &rows) in self.candidates.iter().zip(&self.rows) {
            let side = |rows: u64| {
                let bytes = show_bytes(candidate.slot_bytes * rows as f64);
                format!("{:>14} {bytes:>10} {:>8}", grouped(rows), percent(candidate.hit_rate(rows)))
            };
            text += &format!(
                "{:width$} {:>6} | {} | {}\n",
                candidate.name,
                percent(candidate.references / all),
                side(candidate.rows_now),
                side(rows),
            );
        }
        let side = |rows: &[u64]| {
            let bytes = show_bytes(bytes(&self.candidates, rows));
            format!("{:>14} {bytes:>10} {:>8}", "", percent(overall(&self.candidates, rows)))
        };
        text += &format!("{:width$} {:>6} | {} | {}\n", "all", "", side(&self.rows_now()), side(&self.rows));
        text += "(keys: a table's share of all keys that are pushed. hits: of pushed keys, by the curve of an lru cache.)\n";
        if let Some(lfu) = self.candidates.iter().find(|candidate| candidate.policy == "lfu") {
            text += &format!("('{}' has lfu, which usually hits somewhat more than its curve says.)\n", lfu.name);
        }
        for (name, why) in &self.left_out {
            text += &format!("'{name}' is not counted: {why}\n");
        }
        let caches: Vec<String> = self
            .candidates
            .iter()
            .zip(&self.rows)
            .filter(|(candidate, rows)| candidate.rows_now != **rows)
            .map(|(candidate, rows)| format!("--cache {}={rows}rows", candidate.name))
            .collect();
        if !caches.is_empty() {
            text += &format!("To have it, restore from a checkpoint with: {}\n", caches.join(" "));
        }
        text
    }
}

fn size(candidate: &Candidate, rows: u64) -> Value {
    json!({
        "rows": rows, "bytes": (candidate.slot_bytes * rows as f64).ceil() as u64, "hit_rate": candidate.hit_rate(rows),
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

type Found = (Vec<Candidate>, Vec<(String, &'static str)>);

/// The tables of a running cluster.
async fn from_cluster(args: &Args) -> Result<Found> {
    let flag = if args.target_hit_rate.is_some() { "--target-hit-rate" } else { "--cache-bytes" };
    if let Some(given) = args.describes_a_table() {
        bail!(
            "{given} describes a table, and {flag} asks a running cluster, which knows its tables: leave {given} out, or give --trace"
        );
    }
    let client = args.connect.client().await?;
    let mut stats = total_stats(&client.stats().await?);
    let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
    for (spec, _) in client.list_tables().await? {
        let Some(curve) = stats.remove(&spec.name).and_then(|stats| stats.curve) else {
            left_out.push((spec.name, EXACT));
            continue;
        };
        if curve.references == 0.0 {
            left_out.push((spec.name, UNUSED));
            continue;
        }
        let points = curve.points.iter().map(|point| (point.rows, point.hit_rate));
        candidates.push(candidate(&spec, curve.references, points)?);
    }
    Ok((candidates, left_out))
}

/// The tables of a trace, as the flags or a file of tables describe them.
fn from_trace(args: &Args) -> Result<Found> {
    let path = args.trace.as_deref().context("--trace is missing")?;
    let (specs, partitions) = match &args.config {
        Some(_) => args.configured()?,
        None => (Vec::new(), args.partitions_or(super::Config::default().engine.partitions)?),
    };
    let (mut candidates, mut left_out) = (Vec::new(), Vec::new());
    for (name, curve) in trace::read(path, &args.name, partitions)? {
        let spec = match &args.config {
            Some(file) => specs.iter().find(|spec| spec.name == name).cloned().with_context(|| {
                format!("--trace {}: there is no table '{name}' in --config {}", path.display(), file.display())
            })?,
            None => args.spec.spec(&name, args.dim.context("--trace needs --dim, or --config with the tables")?)?,
        };
        if spec.shape(SMALL_TABLE_BYTES)?.layout.is_exact() {
            left_out.push((name, EXACT));
            continue;
        }
        let points = curve.points();
        candidates.push(candidate(&spec, curve.references(), points.iter().map(|point| (point.rows, point.hit_rate)))?);
    }
    Ok((candidates, left_out))
}

fn candidate(spec: &TableSpec, references: f64, points: impl Iterator<Item = (u64, f64)>) -> Result<Candidate> {
    // A cache of all rows is as large as one can be.
    let most = spec.rows().unwrap_or(u64::MAX);
    let mut curve = vec![(0, 0.0)];
    for (rows, hit_rate) in points {
        let last = curve[curve.len() - 1];
        let rows = rows.min(most);
        match rows == last.0 {
            true => curve.last_mut().expect("it has a first point").1 = hit_rate.max(last.1),
            false => curve.push((rows, hit_rate.max(last.1))),
        }
    }
    Ok(Candidate {
        name: spec.name.clone(),
        policy: spec.policy.to_string(),
        slot_bytes: spec.footprint()?.cache_slot_bytes,
        rows_now: spec.shape(SMALL_TABLE_BYTES)?.cache_rows,
        references,
        points: curve,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    fn plan(line: &str) -> Result<CachePlan> {
        let args = args(line)?;
        let goal = args.goal().expect("the line has one");
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(CachePlan::new(args, goal))
    }

    /// Two tables in turn: `a` uses 100 keys over and over, `b` 1000 of them.
    fn trace() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = (0..20_000).map(|i| format!("a\t{}\nb\t{}\n", i % 100, i % 1000));
        std::fs::write(file.path(), lines.collect::<String>()).unwrap();
        file
    }

    #[test]
    fn a_trace_gives_the_least_that_reaches_the_target() {
        let file = trace();
        let line = format!("--trace {} --dim 16 --partitions 1 --optimizer sgd", file.path().display());
        let value = plan(&format!("{line} --target-hit-rate 45%")).unwrap().json();
        // All of `a` and nothing of `b`: half of all keys, but for those that come first.
        assert_eq!(value["tables"][1]["proposed"]["rows"], 0);
        let rows = value["tables"][0]["proposed"]["rows"].as_u64().unwrap();
        assert!((90..200).contains(&rows), "{value:#}");
        assert_eq!(value["tables"][0]["proposed"]["bytes"], rows * 72);
        assert!(value["proposed"]["hit_rate"].as_f64().unwrap() >= 0.45);
        let printed = plan(&format!("{line} --cache-bytes 100kB")).unwrap().text();
        assert!(printed.contains("--cache a=") && printed.contains("--cache b="), "{printed}");
        let error = plan(&format!("{line} --target-hit-rate 99%")).err().unwrap().to_string();
        assert!(error.contains("--target-hit-rate 99%: at most 97.2 %"), "{error}");
    }

    #[test]
    fn errors_name_the_flag() {
        let file = trace();
        let trace = format!("--trace {}", file.path().display());
        for (line, flag) in [
            (format!("{trace} --target-hit-rate 95%"), "--dim"),
            (format!("{trace} --dim 8 --target-hit-rate 100"), "--target-hit-rate"),
            (format!("{trace} --dim 8 --cache-bytes lots"), "--cache-bytes"),
            ("--trace nowhere --dim 8 --cache-bytes 1GB".into(), "--trace nowhere"),
            ("--cache-bytes 1GB --precision int4".into(), "--precision"),
            ("--cache-bytes 1GB --target-hit-rate 5".into(), "--target-hit-rate"),
            ("--cache-bytes 1GB --each".into(), "--each"),
        ] {
            let error = format!("{:#}", plan(&line).err().expect("it is wrong"));
            assert!(error.contains(flag), "{line}: {error}");
        }
        let small = plan(&format!("{trace} --rows 1000 --dim 8 --cache-bytes 1GB")).err().unwrap().to_string();
        assert!(small.contains("'a': it is f32"), "{small}");
    }
}
