"""moelab: proves fused Mixture-of-Experts kernels correct and times them side by side."""
