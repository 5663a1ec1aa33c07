package com.example.mlp

import android.app.Activity
import android.os.Bundle
import android.widget.TextView
import kotlin.concurrent.thread
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor

/** Shows what the program `mlp` computes from 0, 1, 2, ..., 15. */
class MainActivity : Activity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val view = TextView(this)
        setContentView(view)
        thread { // a program may take longer than the thread of the user interface may be busy
            val text = try {
                scores(FloatArray(16) { it.toFloat() }).joinToString("\n")
            } catch (error: Exception) {
                error.toString()
            }
            runOnUiThread { view.text = text }
        }
    }

    /**
     * Runs `forward` of the program.
     *
     * @param x float32, 16 numbers
     * @return float32, 4 numbers
     */
    private fun scores(x: FloatArray): FloatArray =
        Module.load(installedProgram(this, "mlp").path).use { module ->
            val input = EValue.from(Tensor.fromBlob(x, longArrayOf(1, 16)))
            module.execute("forward", input)[0].toTensor().dataAsFloatArray
        }
}
