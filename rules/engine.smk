"""What costs Snakemake itself seconds in a study of hundreds of jobs, and does not need to."""


def start_jobs_at_once(workflow):
    """Set no limit on jobs per second; the number of cores is limit enough.

    With one Snakemake looks through all ready jobs again every second, once for every job that has ended: a
    third of a core.
    """
    workflow.scheduler.job_rate_limiter = None


def digest_inputs_once(workflow):
    """Digest a job's inputs once, not again for each of its outputs: 800 by 48 took 4 s after every report.

    Snakemake has a memory of what it knows of files, which it uses only while it plans.
    """
    finished = workflow.persistence.finished

    async def finished_with_memory(job):
        workflow.iocache.active = True
        try:
            await finished(job)
        finally:
            workflow.iocache.deactivate()

    workflow.persistence.finished = finished_with_memory
