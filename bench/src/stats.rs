//! Medians and quartiles of a handful of samples. Means are not used: one interrupted round would
//! spoil them.

/// A sample set in three numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// A quarter of the samples lies below.
    pub low: f64,
    /// Half of the samples lies below.
    pub median: f64,
    /// A quarter of the samples lies above.
    pub high: f64,
}

impl Summary {
    /// Sums up `samples`; `None` if there are none or one of them is not a number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| sample.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter| quantile(&sorted, quarter);
        Some(Self { low: at(1), median: at(2), high: at(3) })
    }

    /// Half the distance between the quartiles, as a share of the median.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 {
            return if self.high > self.low { f64::INFINITY } else { 0.0 };
        }
        (self.high - self.low) / 2.0 / self.median.abs()
    }
}

/// The sample `quarter` quarters of the way up, between neighbours in proportion.
fn quantile(sorted: &[f64], quarter: usize) -> f64 {
    let scaled = (sorted.len() - 1) * quarter;
    let (below, rest) = (scaled / 4, scaled % 4);
    let above = (below + 1).min(sorted.len() - 1);
    let share = [0.0, 0.25, 0.5, 0.75][rest];
    // Not `below + share * (above - below)`: infinities would turn into no number at all.
    if rest == 0 { sorted[below] } else { sorted[below] * (1.0 - share) + sorted[above] * share }
}

/// The sample below which `percent` of all lie, without a place between neighbours; not a number if
/// there are none.
pub(crate) fn percentile(samples: &[f64], percent: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a place in a list that fits in memory"
    )]
    let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn the_median_of_an_odd_number_is_the_middle_one_in_any_order() {
        let summary = Summary::of(&[9.0, 1.0, 5.0, 3.0, 7.0]).unwrap();
        assert!(near(summary.median, 5.0) && near(summary.low, 3.0) && near(summary.high, 7.0));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let summary = Summary::of(&[1.0, 2.0, 4.0, 8.0]).unwrap();
        assert!(near(summary.median, 3.0));
        assert!(near(summary.low, 1.75) && near(summary.high, 5.0));
    }

    #[test]
    fn one_wild_round_hardly_moves_the_median() {
        let summary = Summary::of(&[10.0, 11.0, 10.5, 10.2, 9_000.0]).unwrap();
        assert!(near(summary.median, 10.5));
        assert!(summary.spread() < 0.05, "{}", summary.spread());
    }

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let seen = [0.0, 50.0, 99.0, 100.0].map(|percent| percentile(&samples, percent));
        assert!(near(seen[0], 1.0) && near(seen[1], 50.0));
        assert!(near(seen[2], 99.0) && near(seen[3], 100.0));
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn one_sample_is_its_own_summary_without_spread() {
        let summary = Summary::of(&[4.0]).unwrap();
        assert!(near(summary.median, 4.0) && near(summary.spread(), 0.0));
    }

    #[test]
    fn no_samples_or_no_numbers_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn a_spread_around_zero_is_not_hidden() {
        assert!(Summary::of(&[-1.0, 0.0, 1.0]).unwrap().spread().is_infinite());
        assert!(near(Summary::of(&[0.0, 0.0]).unwrap().spread(), 0.0));
    }
}
