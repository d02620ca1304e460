"""Laws: statistical models of the measurements, as pure functions of frames."""
