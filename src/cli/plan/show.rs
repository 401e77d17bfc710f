//! A plan in words, and as JSON.

use anyhow::Result;
use serde_json::{Value, json};

use super::Plan;
use super::size::{Hosts, MAX_PARTITIONS, Planned, Shards, total};
use crate::numeric::Precision;
use crate::server::config::TableConfig;
use crate::table::show_bytes;

const PRECISIONS: [Precision; 6] =
    [Precision::F32, Precision::F16, Precision::Bf16, Precision::Int8, Precision::Int4, Precision::Int2];
/// Cache sizes in per cent of the rows.
const CACHES: [f64; 4] = [0.0, 1.0, 5.0, 10.0];

/// All tables at one precision with one cache size.
struct Cell {
    precision: Precision,
    cache: f64,
    bytes: f64,
    ratio: f64,
    shards: Option<Shards>,
}

impl Plan {
    /// Tables whose rows are known, changed by `change`.
    fn counted(&self, change: impl Fn(&Planned) -> Planned) -> Vec<Planned> {
        self.tables.iter().filter(|table| table.rows.is_some()).map(change).collect()
    }

    fn as_specified(&self) -> Vec<Planned> {
        self.counted(|table| Planned { spec: table.spec.clone(), rows: table.rows })
    }

    /// `tables` at every precision with every cache size.
    fn cells(&self, tables: &[&Planned]) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        let mut plain = 0.0;
        for precision in PRECISIONS {
            for cache in CACHES {
                let changed: Vec<Planned> = tables.iter().map(|table| table.at(precision, cache)).collect();
                let bytes = total(&changed)?;
                if cells.is_empty() {
                    plain = bytes;
                }
                let shards = self.hosts.map(|hosts| hosts.shards(&changed)).transpose()?;
                cells.push(Cell { precision, cache, bytes, ratio: plain / bytes, shards });
            }
        }
        Ok(cells)
    }
    /// For scripts.
    pub fn json(&self) -> Result<Value> {
        let mut tables = Vec::new();
        for table in &self.tables {
            let parts = table.parts()?;
            let footprint = table.spec.footprint()?;
            let mut value = serde_json::to_value(TableConfig::of(&table.spec))?;
            value["rows"] = json!(table.rows);
            value["hashed"] = json!(table.spec.rows().is_none());
            value["stays_f32"] = json!(table.is_small()?);
            value["bytes_per_row"] = json!({
                "weights": parts.weights, "state": parts.state, "index": parts.index,
                "cache": parts.cache, "directory": parts.directory, "all": parts.sum(),
            });
            value["cache_bytes"] = json!(footprint.cache_bytes.ceil() as u64);
            value["total_bytes"] = json!(table.bytes()?.map(|bytes| bytes.ceil() as u64));
            let mut choices = Vec::new();
            for precision in PRECISIONS {
                for cache in CACHES {
                    let changed = table.at(precision, cache);
                    let per_row = table.bytes_per_row_at(precision, cache)?;
                    let plain = table.bytes_per_row_at(Precision::F32, 0.0)?;
                    choices.push(json!({
                        "precision": precision.to_string(), "quantizer": changed.spec.quantizer.to_string(),
                        "cache_percent": cache, "bytes_per_row": per_row, "ratio_to_f32": plain / per_row,
                        "total_bytes": changed.bytes()?.map(|bytes| bytes.ceil() as u64),
                    }));
                }
            }
            value["choices"] = choices.into();
            tables.push(value);
        }
        let all: Vec<&Planned> = self.tables.iter().filter(|table| table.rows.is_some()).collect();
        let mut choices = Vec::new();
        if !all.is_empty() {
            for cell in self.cells(&all)? {
                choices.push(json!({
                    "precision": cell.precision.to_string(), "cache_percent": cell.cache,
                    "total_bytes": cell.bytes.ceil() as u64, "ratio_to_f32": cell.ratio,
                    "shards": cell.shards.map(shards_json),
                }));
            }
        }
        let counted = self.as_specified();
        let hosts = match self.hosts {
            None => Value::Null,
            Some(hosts) => json!({
                "memory_per_host": hosts.memory, "headroom_percent": hosts.headroom,
                "usable_bytes": hosts.usable() as u64, "partitions": hosts.partitions,
                "shards": shards_json(hosts.shards(&counted)?),
            }),
        };
        Ok(json!({
            "tables": tables,
            "total_bytes": total(&counted)?.ceil() as u64,
            "not_counted": self.unknown().map(|table| &table.spec.name).collect::<Vec<_>>(),
            "choices": choices,
            "hosts": hosts,
        }))
    }

    /// Tables whose rows are not known.
    fn unknown(&self) -> impl Iterator<Item = &Planned> {
        self.tables.iter().filter(|table| table.rows.is_none())
    }

    /// For people. `each`: precisions and cache sizes for every table.
    pub fn text(&self, each: bool) -> Result<String> {
        let mut text = self.text_of_tables()?;
        let counted: Vec<&Planned> = self.tables.iter().filter(|table| table.rows.is_some()).collect();
        for table in self.tables.iter().filter(|table| table.rows.is_none() || (each && self.tables.len() > 1)) {
            if table.rows.is_none() {
                text += &format!("\n{}, bytes per row:\n", table.spec.name);
                text += &grid(|precision, cache| {
                    let bytes = table.bytes_per_row_at(precision, cache)?;
                    Ok(with_ratio(format!("{bytes:.1}"), table.bytes_per_row_at(Precision::F32, 0.0)? / bytes))
                })?;
            } else {
                text += &format!("\n{}:\n{}", table.spec.name, bytes_grid(&self.cells(&[table])?)?);
            }
        }
        if counted.is_empty() {
            return Ok(text);
        }
        let cells = self.cells(&counted)?;
        let who = match counted.as_slice() {
            [one] => one.spec.name.clone(),
            all if all.len() == self.tables.len() => "all tables".into(),
            all => format!("the {} tables whose rows are known", all.len()),
        };
        text += &format!("\n{who}, at each precision, with a cache for so many of the rows:\n{}", bytes_grid(&cells)?);
        text += "(x: how many times smaller than f32 without a cache. Rows that are exact, f32 with f32 state, get no cache.)\n";
        if let Some(hosts) = self.hosts {
            text += &self.text_of_hosts(hosts, &cells)?;
        }
        Ok(text)
    }

    fn text_of_tables(&self) -> Result<String> {
        let width = self.tables.iter().map(|table| table.spec.name.len()).max().unwrap_or(0).max(5);
        let mut text = format!(
            "{:width$} {:>17} {:>5} {:>9} {:>11} | {:>8} {:>8} {:>7} {:>8} {:>9} {:>9} | {:>10}\n",
            "table",
            "rows",
            "dim",
            "precision",
            "cache",
            "weights",
            "state",
            "index",
            "cache",
            "directory",
            "bytes/row",
            "total"
        );
        let mut small = 0;
        for table in &self.tables {
            let parts = table.parts()?;
            let is_small = table.is_small()?;
            small += usize::from(is_small);
            let rows = match (table.rows, table.spec.rows()) {
                (Some(rows), Some(_)) => grouped(rows),
                (Some(rows), None) => format!("~{}", grouped(rows)),
                (None, _) => "hashed".into(),
            };
            let precision = if is_small { "f32*".into() } else { table.spec.precision.to_string() };
            let cache = if table.cache_rows()? == 0 { "none".into() } else { table.spec.cache.to_string() };
            let total = table.bytes()?.map_or("?".into(), show_bytes);
            text += &format!(
                "{:width$} {rows:>17} {:>5} {precision:>9} {cache:>11} | {:>8.1} {:>8.1} {:>7.3} {:>8.2} {:>9.2} {:>9.2} | {total:>10}\n",
                table.spec.name,
                table.spec.dim,
                parts.weights,
                parts.state,
                parts.index,
                parts.cache,
                parts.directory,
                parts.sum(),
            );
        }
        let counted = self.as_specified();
        if self.tables.len() > 1 && !counted.is_empty() {
            text += &format!("total of {} tables: {}\n", counted.len(), show_bytes(total(&counted)?));
        }
        text += "(index: the bit that says a row was trained; for a dense table with a cache the one that says it is cached; for a hashed table \
                 its key and its place in the index.)\n";
        if small > 0 {
            text += "(*: under 1 MiB at f32, so it stays f32 whatever is asked.)\n";
        }
        for table in self.unknown() {
            let cache = show_bytes(table.spec.footprint()?.cache_bytes);
            let name = &table.spec.name;
            text += &format!(
                "'{name}' is hashed and its rows are not known, so it is not counted in (nor are its {cache} of cache): give \
                 --expected-rows {name}=N\n"
            );
        }
        Ok(text)
    }

    fn text_of_hosts(&self, hosts: Hosts, cells: &[Cell]) -> Result<String> {
        let Hosts { memory, headroom, partitions } = hosts;
        let usable = show_bytes(hosts.usable());
        let tables = self.as_specified();
        let needed = match hosts.shards(&tables)? {
            Shards::Needed(shards) => {
                let most = partitions.div_ceil(shards);
                let largest = show_bytes(total(&tables)? * f64::from(most) / f64::from(partitions));
                let fewer = match hosts.fewer_with_more_partitions(&tables, shards)? {
                    Some((fewer, enough)) => format!("; {fewer} would do with --partitions {enough}"),
                    None => String::new(),
                };
                format!("{shards} as specified (the largest has {most} of {partitions} partitions: {largest}{fewer})")
            }
            Shards::MorePartitions(enough) => {
                format!(
                    "a single one of {partitions} partitions is too large for a host: use --partitions {enough} or more"
                )
            }
            Shards::TooLarge => format!("a single one of {MAX_PARTITIONS} partitions is too large for a host"),
        };
        let grid = grid_of(cells, |cell| match cell.shards {
            Some(Shards::Needed(shards)) => shards.to_string(),
            Some(Shards::MorePartitions(enough)) => format!("({enough} partitions)"),
            _ => "-".into(),
        });
        Ok(format!(
            "\nShards, one on each host of {} with {headroom} % left free ({usable} for tables): {needed}\n{grid}",
            show_bytes(memory as f64)
        ))
    }
}

fn shards_json(shards: Shards) -> Value {
    match shards {
        Shards::Needed(shards) => json!(shards),
        Shards::MorePartitions(partitions) => json!({ "needs_partitions": partitions }),
        Shards::TooLarge => Value::Null,
    }
}

/// A line for each precision, a column for each cache size.
fn grid(show: impl Fn(Precision, f64) -> Result<String>) -> Result<String> {
    let mut text = format!("  {:9}", "");
    for cache in CACHES {
        let title = if cache == 0.0 { "no cache".into() } else { format!("{cache} %") };
        text += &format!(" {title:>18}");
    }
    text.push('\n');
    for precision in PRECISIONS {
        text += &format!("  {:9}", precision.to_string());
        for cache in CACHES {
            text += &format!(" {:>18}", show(precision, cache)?);
        }
        text.push('\n');
    }
    Ok(text)
}

fn grid_of(cells: &[Cell], show: impl Fn(&Cell) -> String) -> String {
    let found = |precision, cache| cells.iter().find(|cell| cell.precision == precision && cell.cache == cache);
    grid(|precision, cache| Ok(found(precision, cache).map(&show).unwrap_or_default())).unwrap_or_default()
}

fn bytes_grid(cells: &[Cell]) -> Result<String> {
    Ok(grid_of(cells, |cell| with_ratio(show_bytes(cell.bytes), cell.ratio)))
}

fn with_ratio(size: String, ratio: f64) -> String {
    format!("{size} {:>5}", format!("{ratio:.1}x"))
}

/// A number with a comma at every thousand.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
