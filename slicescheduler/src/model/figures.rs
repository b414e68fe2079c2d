//! Figures that files say of their models, checked when a file is opened: a wrong one is told with its key, what it is and
//! what would be right, instead of answers that make no sense.

/// The layers of a decoder or encoder, if the file has weights of so many and no more. `names` are those of its tensors,
/// `prefix` what stands before the number of a layer.
pub(super) fn layers<'a>(
    key: &str,
    said: u32,
    names: impl Iterator<Item = &'a str>,
    prefix: &str,
) -> Result<u32, String> {
    let number = |name: &'a str| name.strip_prefix(prefix)?.split_once('.')?.0.parse::<u64>().ok();
    let there = names.filter_map(number).max().map_or(0, |last| last.saturating_add(1));
    if said == 0 || u64::from(said) != there {
        return Err(format!("{key:?} is {said}; it has weights of {there} layers"));
    }
    Ok(said)
}

/// What is added to a variance, so that its root can be divided by.
pub(super) fn epsilon(key: &str, said: f32) -> Result<f32, String> {
    if (0.0..1.0).contains(&said) { Ok(said) } else { Err(wrong(key, said, "at least 0 and less than 1")) }
}

/// The base of the wavelengths of rotations.
pub(super) fn theta(key: &str, said: f32) -> Result<f32, String> {
    if said.is_finite() && said > 0.0 { Ok(said) } else { Err(wrong(key, said, "a finite number above 0")) }
}

/// The longest sequence.
pub(super) fn context(key: &str, said: u32) -> Result<u32, String> {
    if said > 0 { Ok(said) } else { Err(wrong(key, said, "at least 1")) }
}

/// A token.
pub(super) fn token(key: &str, said: u64, vocabulary: u64) -> Result<u32, String> {
    let token = u32::try_from(said).ok().filter(|_| said < vocabulary);
    token.ok_or_else(|| wrong(key, said, &format!("a token, less than {vocabulary},")))
}

fn wrong(key: &str, said: impl std::fmt::Display, expected: &str) -> String {
    format!("{key:?} is {said}; {expected} is wanted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_can_not_be_are_told_with_their_key() {
        for said in [0.0, 1e-6, 0.5] {
            assert_eq!(epsilon("eps", said), Ok(said));
        }
        for (said, found) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.0, "-1"), (1.0, "1")] {
            assert_eq!(epsilon("eps", said), Err(format!("\"eps\" is {found}; at least 0 and less than 1 is wanted")));
        }
        assert_eq!(theta("base", 1e4), Ok(1e4));
        for (said, found) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.0, "-1"), (0.0, "0")] {
            assert_eq!(theta("base", said), Err(format!("\"base\" is {found}; a finite number above 0 is wanted")));
        }
        assert_eq!((context("length", 1), context("length", u32::MAX)), (Ok(1), Ok(u32::MAX)));
        assert_eq!(context("length", 0), Err("\"length\" is 0; at least 1 is wanted".to_owned()));
        assert_eq!(token("eos", 255, 256), Ok(255));
        for said in [256, u64::MAX] {
            let expected = format!("\"eos\" is {said}; a token, less than 256, is wanted");
            assert_eq!(token("eos", said, 256), Err(expected));
        }
    }

    #[test]
    fn layers_are_as_many_as_there_are_weights_of() {
        let names = ["blk.0.norm", "blk.1.norm", "blk.10.norm", "blk.x.norm", "block.20.norm", "embed"];
        let of = |said| layers("count", said, names.into_iter(), "blk.");
        assert_eq!(of(11), Ok(11));
        for said in [0, 1, 10, 12] {
            assert_eq!(of(said), Err(format!("\"count\" is {said}; it has weights of 11 layers")));
        }
        let vast = ["blk.18446744073709551615.norm"];
        assert!(layers("count", u32::MAX, vast.into_iter(), "blk.").is_err());
    }
}
