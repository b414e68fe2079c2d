//! Published facts of devices, and what exchange between them takes.

use super::{FidelityError, Run};

/// What is known of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceFacts {
    /// A part of the name that its driver gives.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in bytes, as the driver reports it.
    pub memory: u64,
    /// All-reduce between two of them: (bytes, nanoseconds).
    pub all_reduce: &'static [(f64, f64)],
}

/// Multiprocessors from the makers' data sheets. Memory of the two RTX cards as their drivers reported it to vLLM
/// (metadata of LLMServingSim's runs), of the others the data sheet's. All-reduce of two ranks over PCIe with NCCL in
/// graphs: LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml (MIT).
const KNOWN: [DeviceFacts; 7] = [
    DeviceFacts { name: "RTX 4090", multiprocessors: 128, memory: 25_250_627_584, all_reduce: &[] },
    DeviceFacts {
        name: "RTX PRO 6000 Blackwell",
        multiprocessors: 188,
        memory: 101_976_440_832,
        all_reduce: &[
            (4096.0, 12_713.0),
            (65_536.0, 14_756.0),
            (262_144.0, 21_717.0),
            (524_288.0, 29_845.0),
            (1_048_576.0, 41_041.0),
            (2_097_152.0, 67_305.0),
            (4_194_304.0, 124_868.0),
            (8_388_608.0, 240_590.0),
            (20_971_520.0, 587_085.0),
        ],
    },
    DeviceFacts { name: "H100", multiprocessors: 132, memory: 80 << 30, all_reduce: &[] },
    DeviceFacts { name: "H200", multiprocessors: 132, memory: 141 << 30, all_reduce: &[] },
    DeviceFacts { name: "B200", multiprocessors: 148, memory: 180 << 30, all_reduce: &[] },
    DeviceFacts { name: "A100", multiprocessors: 108, memory: 80 << 30, all_reduce: &[] },
    DeviceFacts { name: "L4", multiprocessors: 58, memory: 24 << 30, all_reduce: &[] },
];

impl DeviceFacts {
    /// The facts of the device that its driver calls `name`.
    pub fn of(name: &str) -> Option<Self> {
        let words: Vec<_> = name.split([' ', '-']).collect();
        let is_named = |known: &&Self| {
            let known: Vec<_> = known.name.split(' ').collect();
            words.windows(known.len()).any(|part| part == known)
        };
        KNOWN.iter().find(is_named).copied()
    }
}

/// Times of exchange between devices.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeTimes {
    /// (bytes, nanoseconds), ascending.
    pub times: Vec<(f64, f64)>,
    /// Where they come from.
    pub source: &'static str,
}

/// Times of exchange between `ranks` devices.
///
/// From the device's own measurements if there are any for as many ranks; else a ring over the links that the run's
/// `config.json` states: twice `ranks - 1` steps, each with the link's latency and its share of the bytes.
///
/// # Errors
/// If neither is known.
pub fn exchange_times(device: Option<&DeviceFacts>, run: &Run, ranks: u32) -> Result<ExchangeTimes, FidelityError> {
    if let Some(device) = device.filter(|device| ranks == 2 && !device.all_reduce.is_empty()) {
        return Ok(ExchangeTimes { times: device.all_reduce.to_vec(), source: "NCCL measurements of the device" });
    }
    let Some((bandwidth, latency)) = run.link() else {
        let what = "the link between devices";
        let remedy = "state link_bw (GB/s) and link_latency (ns) in config.json";
        return Err(FidelityError::Unknown { what, run: run.folder.clone(), remedy });
    };
    let steps = 2.0 * f64::from(ranks - 1);
    let time = |bytes: f64| steps * (latency + bytes / f64::from(ranks) / bandwidth);
    Ok(ExchangeTimes { times: vec![(0.0, time(0.0)), (1e9, time(1e9))], source: "the links in config.json" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_whole_words_of_its_name() {
        let multiprocessors = |name| DeviceFacts::of(name).map(|facts| facts.multiprocessors);
        assert_eq!(multiprocessors("NVIDIA GeForce RTX 4090"), Some(128));
        assert_eq!(multiprocessors("NVIDIA RTX PRO 6000 Blackwell Server Edition"), Some(188));
        assert_eq!(multiprocessors("NVIDIA H100 80GB HBM3"), Some(132));
        assert_eq!(multiprocessors("NVIDIA A100-SXM4-80GB"), Some(108));
        assert_eq!(multiprocessors("NVIDIA L40S"), None);
    }
}
