//! Random numbers that are a pure function of their key, equal on every machine.
//!
//! A number is the SplitMix64 finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom
//! number generators", OOPSLA 2014) of a seed, a stream and a counter, so any number of a
//! sequence can be computed without those before it and no two sequences share state. Logarithms
//! and powers come from `libm`, which is plain Rust, never from the platform.

/// A seed to derive streams and other seeds from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// The seed of the part `index` of what this seed is for. Different indexes give unrelated
    /// seeds.
    #[must_use]
    pub const fn derive(self, index: u64) -> Self {
        Self(mix(mix(self.0).wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN))))
    }

    /// Number `counter` of this seed, uniform over all 64-bit values.
    pub const fn number(self, counter: u64) -> u64 {
        mix(self.0.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Number `counter` of this seed, uniform in the open interval (0, 1) in steps of 2^-52.
    pub fn unit(self, counter: u64) -> f64 {
        ((self.number(counter) >> 12) as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64)
    }
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: Seed,
    counter: u64,
}

impl Stream {
    /// The sequence of a seed, from its first number.
    pub const fn new(seed: Seed) -> Self {
        Self { seed, counter: 0 }
    }

    /// The next number, uniform in (0, 1).
    pub fn unit(&mut self) -> f64 {
        let number = self.seed.unit(self.counter);
        self.counter += 1;
        number
    }

    /// The next number, exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The sequence of SplitMix64 for seed 1234567, as listed by Rosetta Code.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let numbers: Vec<u64> = (0..5).map(|n| Seed(1_234_567).number(n)).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn units_fill_the_open_interval_evenly() {
        let mut stream = Stream::new(Seed(3).derive(1));
        let mut tenths = [0_u32; 10];
        for _ in 0..100_000 {
            let unit = stream.unit();
            assert!(unit > 0.0 && unit < 1.0);
            tenths[(unit * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|&n| (9_600..10_400).contains(&n)), "{tenths:?}");
    }

    #[test]
    fn exponentials_have_mean_and_variance_one() {
        let mut stream = Stream::new(Seed(9));
        let draws: Vec<f64> = (0..200_000).map(|_| stream.exponential()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
    }

    #[test]
    fn derived_seeds_differ_from_each_other_and_from_their_parent() {
        let parent = Seed(0);
        let mut seeds: Vec<u64> = (0..1000).map(|n| parent.derive(n).0).collect();
        seeds.push(parent.0);
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 1001);
    }
}
