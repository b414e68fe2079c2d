//! The constants that make the generator arrive like production traces.
//!
//! Source of the figures of code and conv: `AzureLLMInferenceTrace_code.csv` (8,819 requests in 3,436 s) and
//! `AzureLLMInferenceTrace_conv.csv` (19,366 requests in 3,502 s) of AzurePublicDataset
//! (CC-BY-4.0), as first measured in Patel et al., "Splitwise", ISCA 2024.
//!
//! **Rates.** The mean is that of the trace. The levels' time scales were chosen between the
//! scales to be matched, and off their multiples. `active` and `spread` were found by random
//! search for the least squared logarithmic error of the index of dispersion of counts (variance
//! over mean of the counts in bins of a width) at 0.1, 0.3, 1, 3, 10, 30 and 60 s, and of the share
//! of empty bins at 0.1, 1, 10 and 60 s, where both are computed from the realized rate of many
//! hours (for a Poisson process inside a rate, index = 1 + variance / mean of the rate's integral
//! over bins, empty share = mean of exp(-integral)).
//!
//! | index of dispersion at | 0.1 s | 1 s | 10 s | 60 s | empty 1-s bins |
//! |---|---|---|---|---|---|
//! | code, trace | 2.5 | 13 | 72 | 167 | 73 % |
//! | code, 60 hours generated | 2.6 | 13 | 73 | 164 | 74 % |
//! | conv, trace | 1.06 | 1.39 | 3.9 | 16 | 1 % |
//! | conv, 80 hours generated | 1.04 | 1.4 | 4.3 | 18 | 1 % |
//!
//! **Lengths.** Quantiles of the trace, straight lines between them. Prompt and output lengths are
//! uncorrelated in the code trace and almost so (-0.11) in the conv trace.

use slicescheduler_gmg::units::Nanos;

use super::rate::{Level, RateModel};

/// What generated requests are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// The Azure code trace: bursts at every time scale, long prompts, short answers.
    AzureCode,
    /// The Azure conversation trace: a steady stream, medium prompts and answers.
    AzureConv,
    /// The Mooncake conversation trace: a steady stream, very long prompts.
    Mooncake,
}

/// The lengths of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthModel {
    /// Tokens of the prompt.
    pub prompt: Quantiles,
    /// Tokens of the answer.
    pub output: Quantiles,
}

/// A distribution by its quantiles, straight lines between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles(&'static [(f64, u32)]);

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::AzureCode, Self::AzureConv, Self::Mooncake];

    /// The name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AzureCode => "azure-code",
            Self::AzureConv => "azure-conv",
            Self::Mooncake => "mooncake",
        }
    }

    /// How requests arrive.
    pub const fn rate(self) -> RateModel {
        match self {
            Self::AzureCode => CODE_RATE,
            Self::AzureConv => CONV_RATE,
            Self::Mooncake => MOONCAKE_RATE,
        }
    }

    /// How long they are.
    pub const fn lengths(self) -> LengthModel {
        match self {
            Self::AzureCode => LengthModel { prompt: CODE_PROMPT, output: CODE_OUTPUT },
            Self::AzureConv => LengthModel { prompt: CONV_PROMPT, output: CONV_OUTPUT },
            Self::Mooncake => LengthModel { prompt: MOONCAKE_PROMPT, output: MOONCAKE_OUTPUT },
        }
    }
}

impl Quantiles {
    /// The quantile at `unit`, in [0, 1], rounded to nearest.
    pub fn at(self, unit: f64) -> u32 {
        let above = self.0.partition_point(|&(probability, _)| probability < unit);
        let Some(&(high, longest)) = self.0.get(above).or(self.0.last()) else {
            return 1;
        };
        let Some(&(low, shortest)) = above.checked_sub(1).and_then(|below| self.0.get(below)) else {
            return longest;
        };
        if high <= low {
            return longest;
        }
        let share = (unit - low) / (high - low);
        (f64::from(shortest) + share * (f64::from(longest) - f64::from(shortest)) + 0.5) as u32
    }

    /// The mean of the distribution.
    pub fn mean(self) -> f64 {
        self.0
            .windows(2)
            .map(|pair| (pair[1].0 - pair[0].0) * (f64::from(pair[0].1) + f64::from(pair[1].1)) / 2.0)
            .sum()
    }
}

const CODE_RATE: RateModel = RateModel {
    mean_per_second: 2.5667,
    levels: &[
        Level { window: Nanos::secs(55), active: 0.547, spread: 0.517, deck: 10 },
        Level { window: Nanos::secs(9), active: 0.527, spread: 0.215, deck: 10 },
        Level { window: Nanos::ms(1_700), active: 0.849, spread: 0.128, deck: 10 },
        Level { window: Nanos::ms(150), active: 0.783, spread: 0.05, deck: 1 },
    ],
};

const CONV_RATE: RateModel = RateModel {
    mean_per_second: 5.5304,
    levels: &[
        Level { window: Nanos::secs(170), active: 1.0, spread: 0.21, deck: 10 },
        Level { window: Nanos::secs(20), active: 1.0, spread: 0.03, deck: 10 },
        Level { window: Nanos::ms(1_200), active: 1.0, spread: 0.1, deck: 10 },
    ],
};

/// `mooncake_conversation_trace.jsonl` (12,031 requests in 3,537 s; Qin et al., "Mooncake", FAST 2025). Its
/// times are those of steps of three seconds; the generator spreads them.
const MOONCAKE_RATE: RateModel = RateModel {
    mean_per_second: 3.4015,
    levels: &[Level { window: Nanos::secs(50), active: 1.0, spread: 0.1, deck: 10 }],
};

#[rustfmt::skip]
const CODE_PROMPT: Quantiles = Quantiles(&[
    (0.0, 3), (0.02, 35), (0.05, 75), (0.1, 147), (0.15, 232), (0.2, 386), (0.25, 578), (0.3, 770), (0.35, 938),
    (0.4, 1075), (0.45, 1261), (0.5, 1469), (0.55, 1690), (0.6, 1909), (0.65, 2164), (0.7, 2433), (0.75, 2745),
    (0.8, 3192), (0.85, 3919), (0.9, 5186), (0.925, 6097), (0.95, 7302), (0.97, 7435), (1.0, 7437),
]);

#[rustfmt::skip]
const CODE_OUTPUT: Quantiles = Quantiles(&[
    (0.0, 6), (0.05, 6), (0.1, 7), (0.2, 8), (0.3, 9), (0.4, 11), (0.5, 13), (0.6, 16), (0.7, 20), (0.75, 24),
    (0.8, 29), (0.85, 39), (0.9, 55), (0.925, 69), (0.95, 90), (0.96, 105), (0.97, 128), (0.98, 172), (0.985, 201),
    (0.99, 252), (0.995, 361), (0.9975, 599), (0.999, 824), (0.9995, 895), (1.0, 1899),
]);

#[rustfmt::skip]
const CONV_PROMPT: Quantiles = Quantiles(&[
    (0.0, 2), (0.02, 91), (0.05, 181), (0.1, 207), (0.15, 372), (0.2, 387), (0.25, 396), (0.3, 403), (0.35, 414),
    (0.4, 703), (0.45, 984), (0.5, 1020), (0.55, 1045), (0.6, 1071), (0.65, 1097), (0.7, 1130), (0.75, 1189),
    (0.8, 1315), (0.85, 1876), (0.9, 2734), (0.925, 4075), (0.95, 4083), (0.97, 4090), (0.98, 4098), (0.99, 4142),
    (0.995, 4831), (0.9975, 5416), (0.999, 6212), (1.0, 14050),
]);

#[rustfmt::skip]
const CONV_OUTPUT: Quantiles = Quantiles(&[
    (0.0, 7), (0.02, 24), (0.05, 41), (0.1, 54), (0.15, 67), (0.2, 77), (0.25, 85), (0.3, 91), (0.35, 96), (0.4, 103),
    (0.45, 113), (0.5, 129), (0.55, 151), (0.6, 177), (0.65, 217), (0.7, 384), (0.75, 395), (0.8, 400), (0.85, 411),
    (0.9, 424), (0.925, 430), (0.95, 451), (0.97, 509), (0.98, 540), (0.99, 601), (0.995, 643), (0.9975, 720),
    (0.999, 954), (1.0, 1000),
]);

#[rustfmt::skip]
const MOONCAKE_PROMPT: Quantiles = Quantiles(&[
    (0.0, 891), (0.02, 896), (0.05, 901), (0.1, 964), (0.15, 1261), (0.2, 1662), (0.25, 2306), (0.3, 3263),
    (0.35, 4250), (0.4, 4993), (0.45, 5870), (0.5, 6909), (0.55, 8187), (0.6, 9570), (0.65, 11239), (0.7, 13196),
    (0.75, 15368), (0.8, 17869), (0.85, 21467), (0.9, 27367), (0.925, 31521), (0.95, 39552), (0.97, 52219),
    (0.98, 66484), (0.99, 85401), (0.995, 100886), (0.9975, 117917), (0.999, 121301), (1.0, 126195),
]);

#[rustfmt::skip]
const MOONCAKE_OUTPUT: Quantiles = Quantiles(&[
    (0.0, 1), (0.02, 3), (0.05, 10), (0.1, 24), (0.15, 46), (0.2, 100), (0.25, 156), (0.3, 213), (0.35, 256),
    (0.4, 291), (0.45, 322), (0.5, 350), (0.55, 375), (0.6, 399), (0.65, 423), (0.7, 447), (0.75, 472), (0.8, 504),
    (0.85, 543), (0.9, 597), (0.925, 639), (0.95, 698), (0.97, 802), (0.98, 893), (0.99, 1120), (0.995, 1570),
    (0.9975, 1998), (1.0, 2000),
]);

#[cfg(test)]
mod tests {
    use super::*;

    // Means of the traces: 2047.8 and 27.9 tokens (code), 1154.7 and 211.1 tokens (conv), 12035.1 and 342.6
    // (Mooncake).
    #[test]
    fn mean_lengths_are_those_of_the_traces_within_two_percent() {
        let code = Preset::AzureCode.lengths();
        let conv = Preset::AzureConv.lengths();
        let mooncake = Preset::Mooncake.lengths();
        for (quantiles, mean) in [
            (code.prompt, 2047.8),
            (code.output, 27.9),
            (conv.prompt, 1154.7),
            (conv.output, 211.1),
            (mooncake.prompt, 12035.1),
            (mooncake.output, 342.6),
        ] {
            let ratio = quantiles.mean() / mean;
            assert!((0.98..1.02).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn quantiles_are_met_at_their_probabilities_and_grow_between_them() {
        let prompt = Preset::AzureConv.lengths().prompt;
        assert_eq!((prompt.at(0.0), prompt.at(0.5), prompt.at(1.0)), (2, 1020, 14050));
        assert_eq!(prompt.at(0.475), 1002);
        assert_eq!(prompt.at(2.0), 14050);
        let draws: Vec<u32> = (0..=10_000).map(|n| prompt.at(f64::from(n) / 10_000.0)).collect();
        assert!(draws.is_sorted());
    }
}
