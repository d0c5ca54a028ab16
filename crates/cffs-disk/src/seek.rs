//! Seek time by distance, fitted to the three figures of a data sheet.
//!
//! For short distances the arm accelerates half of the way and brakes the other half, so the time grows with the root
//! of the distance; for long ones it coasts, so it grows with the distance. The curve a + b sqrt(d-1) + c (d-1) is put
//! through the single-cylinder seek, the full stroke, and a mean over all pairs of cylinders that is the average seek.

use crate::request::{Ns, ms};

/// A seek curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeekCurve {
    single: f64,
    root: f64,
    linear: f64,
}

impl SeekCurve {
    /// Fits a curve to these seek times in milliseconds, for a disk of `cylinders` (three or more).
    pub fn fit(cylinders: u64, single: f64, average: f64, maximum: f64) -> SeekCurve {
        let n = cylinders as f64;
        // Over all pairs of different cylinders, distance d has the weight 2 (n - d) / (n (n - 1)).
        let (mut mean_root, mut mean_linear) = (0.0, 0.0);
        for d in 1..cylinders {
            let weight = 2.0 * (n - d as f64) / (n * (n - 1.0));
            mean_root += weight * ((d - 1) as f64).sqrt();
            mean_linear += weight * (d - 1) as f64;
        }
        let (far_root, far_linear) = ((n - 2.0).sqrt(), n - 2.0);
        let determinant = mean_root * far_linear - mean_linear * far_root;
        let (average, maximum) = (average - single, maximum - single);
        SeekCurve {
            single,
            root: (average * far_linear - mean_linear * maximum) / determinant,
            linear: (mean_root * maximum - average * far_root) / determinant,
        }
    }

    /// Time for a distance in cylinders. 0 for 0.
    pub fn time(&self, distance: u64) -> Ns {
        if distance == 0 {
            return 0;
        }
        let d = (distance - 1) as f64;
        ms((self.single + self.root * d.sqrt() + self.linear * d).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_meets_the_data_sheet() {
        for (cylinders, single, average, maximum) in
            [(2700, 1.0, 9.0, 22.0), (5371, 0.9, 8.7, 16.5), (5333, 0.6, 8.0, 19.0), (5964, 1.0, 7.9, 18.0)]
        {
            let curve = SeekCurve::fit(cylinders, single, average, maximum);
            assert_eq!(curve.time(0), 0);
            assert_eq!(curve.time(1), ms(single));
            assert!(curve.time(cylinders - 1).abs_diff(ms(maximum)) <= 1);
            let n = cylinders as f64;
            let mean: f64 = (1..cylinders).map(|d| 2.0 * (n - d as f64) / (n * (n - 1.0)) * curve.time(d) as f64).sum();
            assert!((mean / 1e6 - average).abs() < 1e-4, "{mean}");
            assert!((1..cylinders - 1).all(|d| curve.time(d) <= curve.time(d + 1)), "longer never takes less");
        }
    }
}
