# SPDX-License-Identifier: Apache-2.0
"""An Airflow DAG: score new calls every hour; never two runs at once, missed hours are not made up."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

with DAG(
    dag_id="voicetrace_judge",
    start_date=datetime(2026, 1, 1),
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
) as dag:
    BashOperator(
        task_id="run",
        # two days: what came late is judged as well, what was scored costs a look
        bash_command=(
            "voicetrace judge run s3://calls/production --warehouse s3://analytics/judge --since 2d --json; "
            "code=$?; [ $code -le 1 ]  # 1: some call could not be judged, and its row says why"
        ),
        retries=2,
        retry_delay=timedelta(minutes=5),
        execution_timeout=timedelta(hours=6),
    )
