//! How to share out bytes for caches: what brings most for a byte comes first.

/// A table whose cache is to be sized.
pub struct Candidate {
    pub name: String,
    pub policy: String,
    /// Bytes of a cached row, its place in the directory included.
    pub slot_bytes: f64,
    /// Rows of its cache now.
    pub rows_now: u64,
    /// How often its keys are sent, beside those of other tables.
    pub references: f64,
    /// Rows of a cache and its hit rate, from small to large; the first is a cache of no rows.
    pub points: Vec<(u64, f64)>,
}

/// What is wanted of all caches together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The smallest caches that reach this hit rate.
    HitRate(f64),
    /// The highest hit rate that so many bytes reach.
    Bytes(u64),
}

impl Candidate {
    /// The hit rate with a cache of so many rows.
    pub fn hit_rate(&self, rows: u64) -> f64 {
        let above = self.points.partition_point(|&(at, _)| at < rows);
        match (above.checked_sub(1).map(|below| self.points[below]), self.points.get(above)) {
            (_, Some(&(at, rate))) if at == rows => rate,
            (Some((low, low_rate)), Some(&(high, high_rate))) => {
                low_rate + (high_rate - low_rate) * (rows - low) as f64 / (high - low) as f64
            }
            (Some((_, rate)), None) => rate,
            (None, _) => 0.0,
        }
    }

    /// The places of the points on the upper hull, by rows: where more rows bring less and less.
    fn hull(&self) -> Vec<usize> {
        let slope = |from: usize, to: usize| {
            let ((low, low_rate), (high, high_rate)) = (self.points[from], self.points[to]);
            (high_rate - low_rate) / (high - low) as f64
        };
        let mut hull: Vec<usize> = Vec::new();
        for i in 0..self.points.len() {
            while let [.., before, last] = hull[..]
                && slope(before, last) <= slope(last, i)
            {
                hull.pop();
            }
            hull.push(i);
        }
        hull
    }
}

/// The share of all keys that would be hit with so many rows for each.
pub fn overall(candidates: &[Candidate], rows: &[u64]) -> f64 {
    let all: f64 = candidates.iter().map(|candidate| candidate.references).sum();
    let hits = |(candidate, &rows): (&Candidate, &u64)| candidate.references * candidate.hit_rate(rows);
    candidates.iter().zip(rows).map(hits).sum::<f64>() / all
}

/// Bytes of all caches with so many rows for each.
pub fn bytes(candidates: &[Candidate], rows: &[u64]) -> f64 {
    candidates.iter().zip(rows).map(|(candidate, &rows)| candidate.slot_bytes * rows as f64).sum()
}

/// Rows for each. `None` if the hit rate cannot be reached.
pub fn split(candidates: &[Candidate], goal: Goal) -> Option<Vec<u64>> {
    // Piece after piece of each hull; within a table they come in order, since each is less steep than the one before.
    let mut pieces = Vec::new();
    for (which, candidate) in candidates.iter().enumerate() {
        for ends in candidate.hull().windows(2) {
            let ((low, low_rate), (high, high_rate)) = (candidate.points[ends[0]], candidate.points[ends[1]]);
            let gain = candidate.references * (high_rate - low_rate) / ((high - low) as f64 * candidate.slot_bytes);
            if gain > 0.0 {
                pieces.push((gain, which, high));
            }
        }
    }
    pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
    let reached = |rows: &[u64]| match goal {
        Goal::HitRate(rate) => overall(candidates, rows) >= rate,
        Goal::Bytes(most) => bytes(candidates, rows) > most as f64,
    };
    let mut rows = vec![0; candidates.len()];
    for (_, which, high) in pieces {
        if matches!(goal, Goal::HitRate(_)) && reached(&rows) {
            return Some(rows);
        }
        let low = std::mem::replace(&mut rows[which], high);
        if reached(&rows) {
            // Part of this piece is enough: the fewest rows that reach it.
            let (mut not_yet, mut enough) = (low, high);
            while enough - not_yet > 1 {
                rows[which] = not_yet + (enough - not_yet) / 2;
                match reached(&rows) {
                    true => enough = rows[which],
                    false => not_yet = rows[which],
                }
            }
            rows[which] = match goal {
                Goal::HitRate(_) => enough,
                Goal::Bytes(_) => not_yet,
            };
            return Some(rows);
        }
    }
    (matches!(goal, Goal::Bytes(_)) || reached(&rows)).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(slot_bytes: f64, references: f64, points: &[(u64, f64)]) -> Candidate {
        let points = std::iter::once((0, 0.0)).chain(points.iter().copied()).collect();
        Candidate { name: "t".into(), policy: "lru".into(), slot_bytes, rows_now: 0, references, points }
    }

    #[test]
    fn bytes_go_where_they_bring_most() {
        // The second has rows of twice the size, and four times the traffic.
        let tables = [
            candidate(10.0, 100.0, &[(100, 0.5), (200, 0.7), (400, 0.8)]),
            candidate(20.0, 400.0, &[(100, 0.5), (200, 0.55)]),
        ];
        assert_eq!(split(&tables, Goal::Bytes(2000)), Some(vec![0, 100]));
        assert_eq!(split(&tables, Goal::Bytes(2500)), Some(vec![50, 100]));
        assert_eq!(split(&tables, Goal::Bytes(4000)), Some(vec![200, 100]));
        assert_eq!(split(&tables, Goal::Bytes(1_000_000)), Some(vec![400, 200]));
        assert_eq!(split(&tables, Goal::Bytes(0)), Some(vec![0, 0]));
        // The least that reaches half of all: 250 of 500.
        assert_eq!(split(&tables, Goal::HitRate(0.5)), Some(vec![100, 100]));
        assert_eq!(split(&tables, Goal::HitRate(0.0)), Some(vec![0, 0]));
        assert_eq!(split(&tables, Goal::HitRate(0.6)), Some(vec![400, 200]));
        assert_eq!(split(&tables, Goal::HitRate(0.61)), None);
        assert_eq!(bytes(&tables, &[400, 200]), 8000.0);
    }

    #[test]
    fn a_cliff_is_taken_whole() {
        // A scan: nothing is hit until everything fits.
        let tables = [candidate(1.0, 1.0, &[(10, 0.0), (20, 0.01), (40, 0.9)]), candidate(1.0, 1.0, &[(40, 0.4)])];
        assert_eq!(split(&tables, Goal::Bytes(40)), Some(vec![40, 0]));
        assert_eq!(tables[0].hull(), [0, 3]);
        assert!((tables[0].hit_rate(30) - 0.455).abs() < 1e-12);
        assert_eq!(tables[0].hit_rate(1000), 0.9);
    }

    #[test]
    fn no_other_split_is_better() {
        let concave = |scale: f64| -> Vec<(u64, f64)> {
            (1..=20).map(|i| (10 * i, (1.0 - (-(i as f64) / scale).exp()) * 0.9)).collect()
        };
        let tables = [candidate(3.0, 5.0, &concave(4.0)), candidate(1.0, 2.0, &concave(9.0))];
        let chosen = split(&tables, Goal::Bytes(400)).unwrap();
        let best = overall(&tables, &chosen);
        for first in 0..=133 {
            let rows = [first, 400 - 3 * first];
            assert!(overall(&tables, &rows) <= best + 0.002, "{rows:?} against {chosen:?}");
        }
    }
}
