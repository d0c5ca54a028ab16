//! A distribution of times.

use std::time::Duration;

/// How long operations took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// How many there were.
    pub number: usize,
    /// Half of them took at most so long.
    pub median: f64,
    /// 99% of them did.
    pub slow: f64,
    /// All of them did.
    pub longest: f64,
}

impl Distribution {
    /// Of these times.
    pub fn of(mut times: Vec<Duration>) -> Distribution {
        times.sort_unstable();
        // The least time that so many in a hundred do not exceed.
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1);
            times.get(rank - 1).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Distribution { number: times.len(), median: at(50), slow: at(99), longest: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_a_hundred_is_beyond_the_99_percent() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        let expected = Distribution { number: 200, median: 100.0, slow: 198.0, longest: 200.0 };
        assert_eq!(Distribution::of(times), expected);
        let one = Distribution::of(vec![Duration::from_millis(7)]);
        assert_eq!((one.median, one.slow, one.longest), (7.0, 7.0, 7.0));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }
}
