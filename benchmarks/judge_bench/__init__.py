# SPDX-License-Identifier: Apache-2.0
"""The judge judged: calls with planted defects, what the Voice Judge finds of them, and a report.

``python -m benchmarks.judge_bench --out build/judge-bench`` from the repository's root; see docs/judge.md.
"""
