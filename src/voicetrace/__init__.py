# SPDX-License-Identifier: Apache-2.0
"""voicetrace: one record per message of a voice call, the audio as played, and honest evidence."""
