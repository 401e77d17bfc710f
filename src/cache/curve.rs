//! What the hit rate would be with a cache of another size.
//!
//! A cache of one set hits a key if fewer others were used since than it has ways. Here a key has the ways of one set
//! out of many, and the others fall into sets at random: so a distance has a probability of a hit (Smith, 1978), by
//! the sets and ways that a cache of the size in question would have.

use super::directory::geometry;

/// Distances are told apart to one part in 32.
const STEPS: u64 = 32;
/// From here on they are not told apart any more.
const FARTHEST: u64 = (1 << 40) - 1;
/// How many different distances there are.
#[cfg(test)]
pub const BUCKETS: usize = bucket(FARTHEST) + 1;

/// The bucket of a distance.
pub const fn bucket(distance: u64) -> usize {
    let distance = if distance > FARTHEST { FARTHEST } else { distance };
    if distance < STEPS {
        return distance as usize;
    }
    let shift = distance.ilog2() - STEPS.ilog2();
    shift as usize * STEPS as usize + (distance >> shift) as usize
}

/// The distance in the middle of a bucket.
fn middle(bucket: usize) -> f64 {
    let (bucket, steps) = (bucket as u64, STEPS);
    if bucket < steps {
        return bucket as f64;
    }
    let shift = bucket / steps - 1;
    let first = (steps + bucket % steps) << shift;
    first as f64 + ((1u64 << shift) - 1) as f64 / 2.0
}

/// Steps between two sizes, one twice the other, of [`HitCurve::points`].
const POINTS_PER_DOUBLING: i32 = 4;
/// They reach from a sixteenth of today's cache to sixteen times as much.
const DOUBLINGS: i32 = 4;
/// Where there is no cache, from a row in each partition to so many times as much.
const DOUBLINGS_FROM_NONE: i32 = 24;

/// The hit rate of an lru cache by its size, as the recent pushes and touches would have it.
#[derive(Clone, Debug, PartialEq)]
pub struct HitCurve {
    /// By distance: how many uses.
    uses: Vec<f64>,
    references: f64,
    sampled_keys: u64,
    rate: f64,
    place: CachePlace,
    /// The hit rate that the cache has, less what the sample says of it.
    off: f64,
}

/// Where the cache is that a curve is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePlace {
    /// Over so many partitions.
    pub partitions: u32,
    /// As many rows as the cache may have there today.
    pub rows: f64,
}

/// The hit rate at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitPoint {
    /// The size, as a multiple of today's cache, or of one row in each partition where there is none.
    pub size: f64,
    /// Rows of such a cache.
    pub rows: u64,
    /// Its hit rate; 0 before anything was sent.
    pub hit_rate: f64,
}

impl HitCurve {
    /// `references` are all uses, those at no distance included.
    pub(super) fn new(uses: Vec<f64>, references: f64, sampled_keys: u64, rate: f64, place: CachePlace) -> HitCurve {
        HitCurve { uses, references, sampled_keys, rate, place, off: 0.0 }
    }

    /// Corrects it by what a cache of today's size has hit. A sample has too many or too few of the keys that are
    /// often used, and so it is off by nearly the same at all sizes that hold these.
    pub(super) fn corrected(mut self, hits: Option<f64>) -> HitCurve {
        if let (Some(hits), Some(expected)) = (hits, self.sampled_at(1.0)) {
            self.off = hits / self.references - expected;
        }
        self
    }

    /// The share of keys, as sent, that a cache of so many rows would hit; `None` before anything was sent. A key
    /// that was never sent before is a miss at every size.
    pub fn hit_rate(&self, rows: u64) -> Option<f64> {
        let sampled = self.sampled(rows)?;
        let today = self.sampled_at(1.0).filter(|_| self.off != 0.0 && rows > 0);
        // The nearer to the most that any cache can hit, the less can be off.
        let most = self.uses.iter().sum::<f64>() / self.references;
        let part = |today: f64| if most > today { ((most - sampled) / (most - today)).clamp(0.0, 1.0) } else { 1.0 };
        let corrected = today.map(|today| sampled + self.off * part(today));
        Some(corrected.unwrap_or(sampled).clamp(0.0, 1.0))
    }

    /// What the sample says.
    fn sampled(&self, rows: u64) -> Option<f64> {
        let partitions = u64::from(self.place.partitions);
        let larger = rows % partitions;
        let part = |rows: u64, partitions: u64| match partitions {
            0 => 0.0,
            _ => self.hits(rows.min(u64::from(u32::MAX)) as u32) * partitions as f64 / f64::from(self.place.partitions),
        };
        let hits = part(rows / partitions, partitions - larger) + part(rows / partitions + 1, larger);
        (self.references > 0.0).then(|| (hits / self.references).clamp(0.0, 1.0))
    }

    /// Uses that hit where every partition has so many rows.
    fn hits(&self, rows: u32) -> f64 {
        let (sets, ways) = geometry(rows);
        if sets == 0 {
            return 0.0;
        }
        let share = 1.0 / (f64::from(self.place.partitions) * f64::from(sets));
        let counted = self.uses.iter().enumerate().filter(|(_, uses)| **uses != 0.0);
        counted.map(|(bucket, uses)| uses * fewer_than(ways, middle(bucket), share)).sum()
    }

    /// The hit rate with so many times today's cache; `None` also where there is none today.
    pub fn hit_rate_at(&self, size: f64) -> Option<f64> {
        self.hit_rate(self.rows_at(size)?)
    }

    fn sampled_at(&self, size: f64) -> Option<f64> {
        self.sampled(self.rows_at(size)?)
    }

    fn rows_at(&self, size: f64) -> Option<u64> {
        (self.place.rows > 0.0).then(|| (size * self.place.rows).round() as u64)
    }

    /// The curve in points, from small caches to large ones. Engines that share a table have points at the same
    /// sizes, each for its own part.
    pub fn points(&self) -> Vec<HitPoint> {
        let (unit, doublings) = match self.place.rows > 0.0 {
            true => (self.place.rows, -DOUBLINGS..=DOUBLINGS),
            false => (f64::from(self.place.partitions), 0..=DOUBLINGS_FROM_NONE),
        };
        let steps = doublings.start() * POINTS_PER_DOUBLING..=doublings.end() * POINTS_PER_DOUBLING;
        let sizes = steps.map(|step| (f64::from(step) / f64::from(POINTS_PER_DOUBLING)).exp2());
        let point = |size: f64| {
            let rows = (size * unit).round() as u64;
            HitPoint { size, rows, hit_rate: self.hit_rate(rows).unwrap_or(0.0) }
        };
        sizes.map(point).collect()
    }

    /// Keys, as sent, that it stands for. Recent ones count more.
    pub fn references(&self) -> f64 {
        self.references
    }

    /// How many keys are followed.
    pub fn sampled_keys(&self) -> u64 {
        self.sampled_keys
    }

    /// The share of all keys that is followed.
    pub fn sampling_rate(&self) -> f64 {
        self.rate
    }
}

/// The probability that fewer than `ways` of so many keys fall into a set that gets this share of them.
fn fewer_than(ways: u32, keys: f64, share: f64) -> f64 {
    let (most, mean) = (f64::from(ways), keys * share);
    if keys < most {
        return 1.0;
    }
    // Beyond this it is below 1e-9, and the first term would soon be no number.
    if share >= 1.0 || mean > most + 10.0 * most.sqrt() + 20.0 {
        return 0.0;
    }
    let odds = share / (1.0 - share);
    let mut term = (keys * (-share).ln_1p()).exp();
    let mut sum = 0.0;
    for fallen in 0..ways {
        sum += term;
        term *= (keys - f64::from(fallen)) / f64::from(fallen + 1) * odds;
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_near() {
        let mut last = 0;
        for distance in (0..5000).chain((5000..3_000_000).step_by(997)).chain((1 << 30..FARTHEST).step_by(1 << 31)) {
            let bucket = bucket(distance);
            assert!(bucket >= last, "{distance}");
            assert!((middle(bucket) - distance as f64).abs() <= distance as f64 / 60.0, "{distance}");
            last = bucket;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_sum_is_the_binomial_one() {
        // Three keys, each with one chance in four: none is 27/64, one at most 54/64.
        assert!((fewer_than(1, 3.0, 0.25) - 27.0 / 64.0).abs() < 1e-12);
        assert!((fewer_than(2, 3.0, 0.25) - 54.0 / 64.0).abs() < 1e-12);
        // One set for all.
        assert_eq!((fewer_than(32, 31.0, 1.0), fewer_than(32, 32.0, 1.0)), (1.0, 0.0));
        // At the mean it is about even; a cut far out changes nothing.
        assert!((fewer_than(32, 32_000.0, 0.001) - 0.47).abs() < 0.03);
        assert!(fewer_than(32, 107_000.0, 0.001) < 1e-9);
        assert_eq!(fewer_than(32, 200_000.0, 0.001), 0.0);
    }

    #[test]
    fn more_rows_are_never_worse() {
        let uses: Vec<f64> = (0..400).map(|bucket| 1.0 + (bucket % 7) as f64).collect();
        let references = uses.iter().sum::<f64>() * 1.25;
        let curve = HitCurve::new(uses, references, 100, 1.0, CachePlace { partitions: 4, rows: 512.0 });
        let rates: Vec<f64> = (0..40).map(|step| curve.hit_rate(4 << (step / 2)).unwrap()).collect();
        assert!(rates.is_sorted(), "{rates:?}");
        assert!(rates[39] > 0.79 && rates[39] <= 0.8, "{rates:?}");
        assert_eq!(curve.hit_rate(0), Some(0.0));
        let points = curve.points();
        assert_eq!((points[0].size, points[0].rows, points[32].size, points[32].rows), (0.0625, 32, 16.0, 8192));
        assert_eq!(Some(points[16].hit_rate), curve.hit_rate(512));
        let near =
            |curve: &HitCurve, size: f64, rate: f64| assert!((curve.hit_rate_at(size).unwrap() - rate).abs() < 1e-9);
        // The cache hits 3 points more than the sample says: so it would at half the size. Larger ones are nearer
        // to 0.8, which is the most, and there is less to correct.
        let [half, today, twice] = [0.5, 1.0, 2.0].map(|size| curve.hit_rate_at(size).unwrap());
        let corrected = curve.clone().corrected(Some((today + 0.03) * references));
        near(&corrected, 1.0, today + 0.03);
        near(&corrected, 0.5, half + 0.03);
        near(&corrected, 2.0, twice + 0.03 * (0.8 - twice) / (0.8 - today));
        assert_eq!(corrected.hit_rate(0), Some(0.0));
        assert_eq!(curve.hit_rate_at(0.5), curve.hit_rate(256));
        let none = HitCurve { place: CachePlace { partitions: 4, rows: 0.0 }, ..curve };
        assert_eq!((none.points()[0].rows, none.points()[4].rows, none.hit_rate_at(1.0)), (4, 8, None));
    }
}
