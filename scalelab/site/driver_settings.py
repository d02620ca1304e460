"""What a site says about the batch job of a detached sweep's driver."""

from __future__ import annotations

from pydantic import Field

from scalelab.inputs.fields import Count, Duration, Section, Size, Text, Word


class DriverJob(Section):
    """A small batch job, without devices, that runs the driver and renews itself."""

    walltime: Duration = Field(
        description="Time limit, such as 24h; the job is succeeded before it."
    )
    partition: Word | None = Field(
        default=None, description="SLURM partition; by default the site's."
    )
    queue: Word | None = Field(
        default=None, description="PBS queue; by default the site's."
    )
    cores: Count = Field(default=1, description="Cores to ask for.")
    memory: Size = Field(
        default=2_000_000_000, description="Memory to ask for, such as 2GB."
    )
    directives: tuple[Text, ...] = Field(
        default=(),
        description="Further directives, one per line, without #SBATCH or #PBS.",
    )
