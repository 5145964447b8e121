//! The few options of the two programs.

use crate::Failure;
use crate::measure::Effort;

/// What to measure, and how thoroughly.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BenchArgs {
    /// A full or a quick run.
    pub effort: Effort,
    /// Only this row.
    pub only: Option<String>,
    /// Show the rows and stop.
    pub list: bool,
    /// Make plots and tables of the results there are, and stop.
    pub publish: bool,
}

/// Which long run, and how long.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub struct SoakArgs {
    /// The share of the full length: 1 is all of it.
    pub scale: f64,
    /// Only this run.
    pub only: Option<String>,
    /// Show the runs and stop.
    pub list: bool,
}

impl BenchArgs {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// An option is unknown or lacks its value.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, Failure> {
        let mut parsed = Self { effort: Effort::FULL, only: None, list: false, publish: false };
        let mut rounds = None;
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => parsed.effort = Effort::QUICK,
                "--list" => parsed.list = true,
                "--publish" => parsed.publish = true,
                "--only" => parsed.only = Some(args.next().ok_or("--only needs a row, as P6")?),
                "--rounds" => {
                    let text = args.next().ok_or("--rounds needs a number, as 5")?;
                    let count = text.parse().ok().filter(|count| *count > 0_usize);
                    rounds = Some(count.ok_or_else(|| format!("--rounds {text}: at least 1"))?);
                }
                _ => {
                    let options = "--quick, --only P6, --rounds 5, --list, --publish";
                    return Err(format!("unknown option `{arg}`: {options}").into());
                }
            }
        }
        parsed.effort.rounds = rounds.unwrap_or(parsed.effort.rounds);
        Ok(parsed)
    }
}

impl SoakArgs {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// An option is unknown, lacks its value, or the scale is not above 0 and at most 1.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, Failure> {
        let mut parsed = Self { scale: 1.0, only: None, list: false };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--list" => parsed.list = true,
                "--only" => {
                    parsed.only = Some(args.next().ok_or("--only needs the name of a run")?);
                }
                "--scale" => {
                    let text = args.next().ok_or("--scale needs a number, as 0.05")?;
                    let scale = text.parse().ok().filter(|scale| *scale > 0.0 && *scale <= 1.0);
                    parsed.scale =
                        scale.ok_or_else(|| format!("--scale {text}: above 0 and at most 1"))?;
                }
                _ => {
                    let options = "--scale 0.05, --only NAME, --list";
                    return Err(format!("unknown option `{arg}`: {options}").into());
                }
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bench_reads_its_options() {
        let parsed = BenchArgs::parse(words("--quick --only P6")).unwrap();
        assert_eq!((parsed.effort, parsed.only.as_deref()), (Effort::QUICK, Some("P6")));
        assert_eq!(BenchArgs::parse(words("")).unwrap().effort, Effort::FULL);
        assert_eq!(BenchArgs::parse(words("--rounds 5 --quick")).unwrap().effort.rounds, 5);
        for bad in ["--only", "--fast", "P6", "--rounds", "--rounds 0", "--rounds x"] {
            assert!(BenchArgs::parse(words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn soak_takes_a_scale_above_zero_and_up_to_one() {
        for good in ["--scale 0.05", "--scale 1"] {
            assert!(SoakArgs::parse(words(good)).is_ok(), "{good}");
        }
        for bad in ["--scale", "--scale 0", "--scale -1", "--scale 1.1", "--scale NaN", "--scale x"]
        {
            assert!(SoakArgs::parse(words(bad)).is_err(), "{bad}");
        }
    }
}
