//! Logarithmic scales: from a number to a place, and the powers of ten in between.

/// Numbers from `low` to `high`, both powers of ten, spread over places from `from` to `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Scale {
    /// A scale on which all `numbers` above zero have their place; at least one power of ten long.
    pub(super) fn over(numbers: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        for number in numbers.filter(|number| *number > 0.0 && number.is_finite()) {
            low = low.min(whole(number.log10().floor()));
            high = high.max(whole(number.log10().ceil()));
        }
        if low > high {
            (low, high) = (0, 1);
        }
        Self { low, high: high.max(low + 1), from, to }
    }

    /// The place of `number`; what is too small is at the lower end.
    pub(super) fn place(&self, number: f64) -> f64 {
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        let share = (number.max(f64::MIN_POSITIVE).log10() - low) / (high - low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The powers of ten, with their names.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low..=self.high).map(|power| {
            let number = 10_f64.powi(power);
            (number, crate::report::number(number))
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an exponent of a number")]
fn whole(number: f64) -> i32 {
    number as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_equally_far_apart() {
        let scale = Scale::over([0.5, 70.0].into_iter(), 0.0, 300.0);
        let places: Vec<f64> = scale.ticks().map(|(number, _)| scale.place(number)).collect();
        assert_eq!(places.len(), 4);
        for pair in places.windows(2) {
            assert!((pair[1] - pair[0] - 100.0).abs() < 1e-6, "{places:?}");
        }
    }

    #[test]
    fn zero_has_a_place_too() {
        let scale = Scale::over([0.0, 5.0].into_iter(), 10.0, 20.0);
        assert!((scale.place(0.0) - 10.0).abs() < 1e-9);
    }
}
